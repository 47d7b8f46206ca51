"""Default settings that depend on the corpus, the model's width, the batch size or the device, each with its reason.

Enters: statistics of the training text (text_statistics.py), the settings so far, and those that the user set, which
are never changed. Leaves: `Choice`s. All other defaults are constants, in config.py and in the presets.

    data.tokenizer              characters for short strings of ever new words (spelling, numbers, dates), else BPE
    data.source_tokenizer       where only one side is such strings, and the other has a closed vocabulary (phonemes)
    data.vocab_size             grows with the number of pairs
    data.word_pairs             where both sides are sentences of a natural language
    model.positions             rotary where the model allows them
    model.dropout               0.1 for predictable text
    training.label_smoothing    0 for predictable text
    training.tokens_per_batch   on a GPU at least 16,384; on a CPU 1,024 for predictable text; with long sources less
    training.max_steps          more of them where a CPU has smaller batches
    training.learning_rate      inversely proportional to the width, proportional to the square root of the batch size
    translate.correct_spelling  where sources are made of words, of which few are new

Those for model.positions and training.tokens_per_batch, max_steps and learning_rate apply to the preset tiny only: the
others have the paper's schedule, whose learning rate has its own rule.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heed.config import DataConfig, ModelConfig, TrainingConfig
from heed.settings import format_setting
from heed.text.text_statistics import TextStatistics

Sections = Mapping[str, dict[str, Any]]  # settings by section, then by name

CHOSEN = {  # the names of all settings that may be chosen, by section
    "data": ("tokenizer", "source_tokenizer", "word_pairs"),
    "model": ("positions", "dropout"),
    "training": ("label_smoothing", "tokens_per_batch", "max_steps", "learning_rate"),
    "translate": ("correct_spelling",),
}

_MANY_NEW_WORDS = 0.5  # share of words that are in one half of the text only: more than in sentences of any language
_CLOSED_VOCABULARY = 0.002  # share of words that are in one half of the text only: fewer than in any natural language
_FEW_NEW_WORDS = 0.1  # share of words that are in one half of the text only: a new word is often a misspelt one
_SHORT = 60  # characters per text, on average
_LONGEST_WORD = 20  # characters: a longer text in a script without spaces is a sentence
_LARGE_ALPHABET = 400  # distinct characters: of Chinese, for example, too many and too rare to be tokens of their own
_LETTERS = 0.8  # tokens per character from which nearly every letter is a token of its own
_REFERENCE_WIDTH, _REFERENCE_BATCH = 128, 4096
_RATE, _PREDICTABLE_RATE = 5e-3, 2.5e-3  # peak learning rates for the reference width and batch
_GPU_BATCH = 16_384  # target tokens: on a GPU a step of a small model hardly takes longer than with 4,096
_SMALL_BATCH = 1024  # target tokens: on a CPU, where the time of a step grows with its tokens, for predictable text
_MUCH_LONGER = 1.5  # sources than targets: the time and memory of a step grow with the tokens of both sides
_SMALLEST_BATCH = 256  # target tokens, however long the sources
_LETTERS_PER_CJK_CHARACTER = 4  # one says about as much as four letters of an alphabet, and is as many tokens


@dataclass(frozen=True)
class Hardware:
    """What a run is trained on."""

    has_gpu: bool
    processes: int = 1  # each has batches of its own in every step


@dataclass(frozen=True)
class Choice:
    """A setting that was chosen, and why."""

    section: str
    name: str
    value: Any
    reason: str

    def __str__(self) -> str:
        value = f"{self.value:.3g}" if isinstance(self.value, float) else format_setting(self.value)
        return f"{self.section}.{self.name} = {value}: {self.reason}"


def choose_settings(
    sides: Sequence[TextStatistics], settings: Sections, user: Sections, hardware: Hardware
) -> Iterator[Choice]:
    """The settings that depend on the text of source and target, each put into `settings` before the next is chosen."""
    chooses = (_tokenizers, _word_pairs, _positions, _dropout, _label_smoothing, _batch_size, _learning_rate, _spelling)
    for choose in chooses:
        for choice in choose(sides, settings, hardware):
            if choice.name not in user[choice.section]:
                settings[choice.section][choice.name] = choice.value
                yield choice


def choose_tokenizers(sides: Sequence[TextStatistics]) -> Iterator[Choice]:
    """Characters where the spelling of words matters more than their identity; else BPE.

    Where one side is spelt and the other has a closed vocabulary, as in pronunciation, each has its own tokenizer.
    """
    new = max(side.new_words for side in sides)
    lengths = " and ".join(f"{side.characters:.0f}" for side in sides)
    if new <= _MANY_NEW_WORDS:
        reason = f"{1 - new:.0%} of the words in one half of the text are also in the other half"
    else:
        reason = (
            f"{new:.0%} of the words in one half of the text are new, and texts have {lengths} characters on average"
        )
    if any(side.unspaced > 0.5 and side.characters > _LONGEST_WORD for side in sides):
        yield Choice("data", "tokenizer", "bpe", "sentences of a script without spaces between words")
        return
    is_short = all(side.characters <= _SHORT and side.alphabet <= _LARGE_ALPHABET for side in sides)
    if new <= _MANY_NEW_WORDS or not is_short:
        yield Choice("data", "tokenizer", "bpe", reason)
        return
    source, target = ("bpe" if side.new_words < _CLOSED_VOCABULARY else "characters" for side in sides)
    closed = "has a closed vocabulary: nearly every word of it is in both halves of the text"
    yield Choice("data", "tokenizer", target, f"the target {closed}" if target == "bpe" else reason)
    if source != target:
        yield Choice("data", "source_tokenizer", source, f"the source {closed}" if source == "bpe" else reason)


def choose_vocab_size(pairs: int) -> Choice:
    """The vocabulary size for a corpus of this many pairs: about 8,000 for 30,000 pairs, 32,000 from 4 million on.

    Rare tokens are trained badly, so a small corpus needs a small vocabulary. The exponent interpolates between the
    sizes that published systems use at those two ends.
    """
    size = int(max(1000, min(32_000, 32_000 * (pairs / 4_000_000) ** 0.28)) / 8) * 8
    return Choice("data", "vocab_size", size, f"at most, for {pairs:,} pairs or texts")


def tokenizer_is_set(data: Mapping[str, Any]) -> bool:
    """Whether the user's data settings decide the tokenizers: BPE-dropout needs BPE."""
    return bool(data.keys() & {"tokenizer", "source_tokenizer", "bpe_dropout"})


def letters_warning(side: TextStatistics, tokens_per_text: float, vocab_size: int) -> str | None:
    """A warning where a vocabulary is so small that nearly every letter is a token of its own."""
    if side.alphabet > _LARGE_ALPHABET or tokens_per_text < _LETTERS * side.characters:
        return None
    return (
        f"a vocabulary of {vocab_size:,} tokens splits words into letters: {tokens_per_text:.0f} tokens for "
        f"{side.characters:.0f} characters per text. Raise data.vocab_size, or set data.tokenizer=characters"
    )


def _tokenizers(sides: Sequence[TextStatistics], settings: Sections, _: Hardware) -> Iterator[Choice]:
    if not tokenizer_is_set(settings["data"]):
        yield from choose_tokenizers(sides)


def _word_pairs(sides: Sequence[TextStatistics], settings: Sections, _: Hardware) -> Iterator[Choice]:
    yield from choose_word_pairs(sides, settings)


def _positions(_: Sequence[TextStatistics], settings: Sections, __: Hardware) -> Iterator[Choice]:
    """Rotary, unless the schedule is the paper's or the heads forbid it."""
    model = settings["model"]
    width, heads = (model.get(name, ModelConfig.model_fields[name].default) for name in ("d_model", "heads"))
    has_attention = model.get("mixer", "attention") == "attention" and model.get("d_k") is None
    paper = TrainingConfig.model_validate(settings["training"]).schedule == "paper"
    if has_attention and width % (2 * heads) == 0 and not paper:
        yield Choice("model", "positions", "rotary", "a small model needs fewer steps than with sinusoidal ones")


def _dropout(sides: Sequence[TextStatistics], settings: Sections, _: Hardware) -> Iterator[Choice]:
    if reason := _predictable(sides, settings):
        yield Choice("model", "dropout", 0.1, reason)


def _label_smoothing(sides: Sequence[TextStatistics], settings: Sections, _: Hardware) -> Iterator[Choice]:
    if reason := _predictable(sides, settings):
        yield Choice("training", "label_smoothing", 0.0, reason)


def _predictable(sides: Sequence[TextStatistics], settings: Sections) -> str:
    """Why a model for this text hardly overfits; empty for other text."""
    if "characters" in _tokenizer_types(settings):
        return "short strings, character by character"
    if max(side.new_words for side in sides) < _CLOSED_VOCABULARY:
        return "a closed vocabulary, since one half of the text has hardly a word that the other has not"
    return ""


def _tokenizer_types(settings: Sections) -> tuple[str, str]:
    """Of source and target."""
    return DataConfig.model_validate(settings["data"]).tokenizer_types


def _batch_size(sides: Sequence[TextStatistics], settings: Sections, hardware: Hardware) -> Iterator[Choice]:
    """Target tokens per batch; on a CPU with smaller batches more steps, so that as many tokens are seen."""
    training = TrainingConfig.model_validate(settings["training"])
    if training.schedule == "paper":
        return
    preset = training.tokens_per_batch
    batch, reasons = preset, []
    if hardware.has_gpu and preset < _GPU_BATCH:
        batch, reasons = _GPU_BATCH, [f"on a GPU a step takes hardly longer than with {preset:,}"]
    elif not hardware.has_gpu and preset > _SMALL_BATCH and _predictable(sides, settings):
        batch, reasons = _SMALL_BATCH, ["on a CPU predictable text gets further in the same time with small batches"]
    longer = _letters(sides[0]) / max(1.0, _letters(sides[-1]))
    if longer >= _MUCH_LONGER:
        batch = max(_SMALLEST_BATCH, int(batch / longer) // 8 * 8)
        reasons.append(f"sources are {longer:.1f} times as long as targets, whose tokens it counts")
    if batch == preset:
        return
    yield Choice("training", "tokens_per_batch", batch, "; ".join(reasons))
    if not hardware.has_gpu and settings["training"]["tokens_per_batch"] == batch:  # unless the user has set it
        steps = training.max_steps * preset // batch
        reason = f"as many tokens as in {training.max_steps:,} batches of {preset:,}"
        yield Choice("training", "max_steps", steps, reason)


def _letters(side: TextStatistics) -> float:
    """The length of texts, comparable between scripts: a text has a quarter as many characters in Chinese."""
    return side.characters * (1 + (_LETTERS_PER_CJK_CHARACTER - 1) * side.cjk)


def _learning_rate(sides: Sequence[TextStatistics], settings: Sections, hardware: Hardware) -> Iterator[Choice]:
    """The peak learning rate; the paper's schedule has its own rule."""
    training = TrainingConfig.model_validate(settings["training"])
    if training.schedule == "paper":
        return
    width = settings["model"].get("d_model", ModelConfig.model_fields["d_model"].default)
    batch = training.tokens_per_batch * training.accumulate * hardware.processes
    rate = _PREDICTABLE_RATE if _predictable(sides, settings) else _RATE
    value = rate * _REFERENCE_WIDTH / width * math.sqrt(batch / _REFERENCE_BATCH)
    yield Choice("training", "learning_rate", value, f"for width {width} and batches of {batch:,} target tokens")


def choose_word_pairs(sides: Sequence[TextStatistics], settings: Sections) -> Iterator[Choice]:
    """Whether single words become training pairs: where both sides are sentences of a natural language."""
    is_natural = all(_CLOSED_VOCABULARY <= side.new_words <= _MANY_NEW_WORDS for side in sides)
    if is_natural and all(name in ("bpe", "unigram", "words") for name in _tokenizer_types(settings)):
        yield Choice("data", "word_pairs", value=True, reason="models of sentences alone translate single words badly")


def _spelling(sides: Sequence[TextStatistics], settings: Sections, _: Hardware) -> Iterator[Choice]:
    """Whether the model corrects misspelt words: not where any string of letters may be meant."""
    source = sides[0]
    if _tokenizer_types(settings)[0] in ("bpe", "unigram", "words") and source.new_words <= _FEW_NEW_WORDS:
        reason = f"{1 - source.new_words:.0%} of the source words in one half of the text are also in the other half"
        yield Choice("translate", "correct_spelling", value=True, reason=reason)
