"""The pronoun experiment: which heads find the antecedent of `it`, and what the French pronoun depends on.

    The animal didn't cross the street because it was too tired.    it = the animal, subject: il
    The animal didn't cross the street because it was too wide.     it = the street, object: elle

The sentences are held-out ones of the built-in corpus whose two nouns differ in gender, so that the French pronoun
shows which one is meant; in one half of them `it` means the subject, in the other the object. Three questions:

Which head finds the antecedent?  For each encoder head, in how many sentences `it`, or else the adjective that
disambiguates it, puts more attention weight on the antecedent than on the other noun. Always preferring the subject
gives 50 %. An untrained model of the same shape is the baseline: intervals are over sentences, and adjectives are few,
so an adjective that prefers the right noun by chance decides many sentences.

What does the decoder attend to?  The weights of each cross-attention head where il or elle is predicted.

What does the pronoun depend on?  Occlusion: a source word is replaced by padding, which is masked, and il or elle is
predicted again: `forced`, the more probable of the two after the reference prefix, which still has both nouns; and
`written`, the pronoun in a greedy translation of the remaining source.

Enters: a model and its tokenizers. Leaves: counts, each with its 95 % interval, and mean weights.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.select import inference_backend
from heed.decoding.decode import greedy_search
from heed.decoding.engine import max_output_lengths
from heed.decoding.forced_decoding import teacher_forcing_batch, token_log_probs
from heed.errors import DataError, InputError
from heed.interpret.observe import observe
from heed.interpret.tokens import TextModel, TokenizedText
from heed.microworld import words
from heed.microworld.corpus import Example, examples, pronoun_is_right
from heed.model.attention import fused_attention
from heed.model.torch_state import float32_by_default, torch_defaults
from heed.model.transformer import Transformer
from heed.text.tokenizer import Tokenizer

Occluded = Literal["nothing", "antecedent", "other noun", "adjective"]
QueryWord = Literal["it", "adjective"]
QUERY_WORDS: tuple[QueryWord, ...] = ("it", "adjective")
OCCLUDED: tuple[Occluded, ...] = ("nothing", "antecedent", "other noun", "adjective")

_GENDERS = {
    noun.english: noun.gender
    for nouns in (words.ANIMALS.nouns, *(hindrance.objects for hindrance in words.HINDRANCES))
    for noun in nouns
}
_BATCH = 250  # sentences
_Z = 1.959964  # the 0.975 quantile of the standard normal distribution


@dataclass(frozen=True)
class Rate:
    """A proportion with Wilson's 95 % interval, which is also valid near 0 and 1."""

    found: int
    of: int
    share: float
    low: float
    high: float

    @classmethod
    def counted(cls, found: int, of: int) -> "Rate":
        """The rate `found / of` with its interval."""
        share, per = found / of, _Z**2 / of
        half = _Z * math.sqrt(share * (1 - share) / of + per / of / 4)
        return cls(found, of, share, *((share + per / 2 + end) / (1 + per) for end in (-half, half)))


@dataclass(frozen=True)
class AntecedentRate:
    """How often the query word puts more weight on the antecedent, in one encoder head; layer and head count from 1."""

    looker: QueryWord
    layer: int
    head: int
    trained: Rate
    untrained: Rate
    on_antecedent: float  # mean weights, of the trained model
    on_other: float


@dataclass(frozen=True)
class CrossAttentionMeans:
    """The mean weight of one cross-attention head on each word where il or elle is predicted."""

    layer: int
    head: int
    it: float
    antecedent: float
    other: float
    adjective: float


@dataclass(frozen=True)
class OcclusionRates:
    """How often il or elle is right without one source word."""

    removed: Occluded
    forced: Rate
    written: Rate


@dataclass(frozen=True)
class PronounResults:
    """The answers to all three questions; the field names are the keys of `heed pronouns --json`."""

    sentences: int
    findings: tuple[AntecedentRate, ...]
    glances: tuple[CrossAttentionMeans, ...]
    removals: tuple[OcclusionRates, ...]


@dataclass(frozen=True)
class PronounSentence:
    """A sentence, its ids, and the token positions of the words in question."""

    example: Example
    ids: tuple[int, ...]
    it: tuple[int, ...]
    antecedent: tuple[int, ...]
    other: tuple[int, ...]
    adjective: tuple[int, ...]

    def without(self, removed: Occluded, pad_id: int) -> list[int]:
        """The ids, with padding in place of the occluded word."""
        positions: dict[Occluded, tuple[int, ...]] = {
            "nothing": (),
            "antecedent": self.antecedent,
            "other noun": self.other,
            "adjective": self.adjective,
        }
        return [pad_id if position in positions[removed] else token for position, token in enumerate(self.ids)]


@torch_defaults()
def measure_pronouns(text_model: TextModel, sentences: int = 1000, seed: int = 0) -> PronounResults:
    """Answer all three questions; seed: of the sentences and of the weights of the untrained model."""
    model, config = text_model.model, text_model.config
    if config.kind != "encoder-decoder":
        raise InputError(f"pronouns needs an encoder-decoder, and kind = {config.kind!r} does not translate")
    if sentences < 2 or sentences % 2:
        raise DataError(f"expected an even number of sentences, one half per antecedent, found {sentences}")
    cases = [
        pronoun_sentence(example, text_model.tokenizers[0]) for example in disambiguating_examples(sentences, seed)
    ]
    trained, baseline = antecedent_weights(model, cases), antecedent_weights(untrained(model, seed), cases)
    right, right_untrained = ((weights[..., 0] > weights[..., 1]).sum(0) for weights in (trained, baseline))
    means = trained.mean(0)
    antecedent_rates = (
        AntecedentRate(
            QUERY_WORDS[query],
            layer + 1,
            head + 1,
            Rate.counted(int(right[query, layer, head]), sentences),
            Rate.counted(int(right_untrained[query, layer, head]), sentences),
            *means[query, layer, head].tolist(),
        )
        for query, layer, head in np.ndindex(right.shape)
    )
    cross_weights = pronoun_cross_attention(text_model, cases).mean(0)
    cross_means = (
        CrossAttentionMeans(layer + 1, head + 1, *cross_weights[layer, head].tolist())
        for layer, head in np.ndindex(cross_weights.shape[:2])
    )
    occlusion_rates = (OcclusionRates(word, *_rates_without(text_model, cases, word)) for word in OCCLUDED)
    return PronounResults(sentences, tuple(antecedent_rates), tuple(cross_means), tuple(occlusion_rates))


def disambiguating_examples(count: int, seed: int) -> list[Example]:
    """Different held-out sentences whose nouns differ in gender; `it` means the subject in exactly half of them."""
    chosen: dict[str, Example] = {}
    missing = {"subject": count // 2, "object": count - count // 2}
    for example in examples("test", seed):
        antecedent = example.antecedent
        if antecedent and missing[antecedent] and example.source not in chosen and _genders_differ(example):
            chosen[example.source] = example
            missing[antecedent] -= 1
        if not any(missing.values()):
            break
    return list(chosen.values())


def _genders_differ(example: Example) -> bool:
    return _GENDERS[str(example.subject)] != _GENDERS[str(example.object)]


def pronoun_sentence(example: Example, tokenizer: Tokenizer) -> PronounSentence:
    """The token positions of the words; a word may have several tokens."""
    match = re.fullmatch(
        rf".*\b(?P<subject>{example.subject}) didn't .*\b(?P<object>{example.object})"
        r" because (?P<it>it) was \w+ (?P<adjective>.+)\.",
        example.source,
    )
    if match is None or example.antecedent is None:
        raise DataError(f"expected a sentence with 'because it was', found {example.source!r}")
    (ids,) = tokenizer.encode([example.source])
    spans = TokenizedText.of(tokenizer, ids).spans
    positions = {
        name: tuple(
            position
            for position, (start, end) in enumerate(spans)
            if start < match.end(name) and end > match.start(name)
        )
        for name in ("subject", "object", "it", "adjective")
    }
    other = "object" if example.antecedent == "subject" else "subject"
    words = (positions["it"], positions[example.antecedent], positions[other], positions["adjective"])
    return PronounSentence(example, tuple(ids), *words)


def untrained(model: Transformer, seed: int) -> Transformer:
    """A model of the same shape with random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        with torch_defaults(), float32_by_default():
            fresh = Transformer(model.config)
    return fresh.to(model.vocabulary.embedding.weight).eval()


def antecedent_weights(model: Transformer, cases: Sequence[PronounSentence]) -> Float[np.ndarray, "N Q L H 2"]:
    """The weight of each query word on the antecedent and on the other noun, in every encoder layer and head."""
    names = [f"encoder.{layer}.self.weights" for layer in range(1, model.config.encoder_layers + 1)]
    chunks = []
    for batch in _batches(cases):
        src, tgt_in, _ = teacher_forcing_batch(model, [case.ids for case in batch], [[] for _ in batch])
        activations = observe(model, src, tgt_in, names=names, attend=fused_attention)
        weights = torch.stack([activations[name] for name in names], 1).float()  # (B, L, H, S, S)
        queries, nouns = _indicators(batch, QUERY_WORDS, src), _indicators(batch, ("antecedent", "other"), src)
        rows = queries / queries.sum(1, keepdim=True)  # the mean over the tokens of a word
        chunks.append(torch.einsum("blhrc,brq,bcn->bqlhn", weights, rows, nouns).cpu().numpy())
    return np.concatenate(chunks)


def pronoun_cross_attention(text_model: TextModel, cases: Sequence[PronounSentence]) -> Float[np.ndarray, "N L H 4"]:
    """The weight on `it`, antecedent, other noun and adjective where each cross-attention head predicts il or elle."""
    model, encode = text_model.model, text_model.tokenizers[1].encode
    names = [f"decoder.{layer}.cross.weights" for layer in range(1, model.config.decoder_layers + 1)]
    chunks = []
    for batch in _batches(cases):
        prefixes = encode([_around_pronoun(case.example.target)[0] for case in batch])
        src, tgt_in, _ = teacher_forcing_batch(model, [case.ids for case in batch], prefixes)
        activations = observe(model, src, tgt_in, names=names, attend=fused_attention)
        weights = torch.stack([activations[name] for name in names], 1).float()  # (B, L, H, T, S)
        last = (tgt_in != model.config.pad_id).sum(1) - 1
        rows = weights[torch.arange(len(batch)), :, :, last]  # (B, L, H, S)
        words = _indicators(batch, ("it", "antecedent", "other", "adjective"), src)
        chunks.append(torch.einsum("blhc,bcn->blhn", rows, words).cpu().numpy())
    return np.concatenate(chunks)


def _indicators(
    cases: Sequence[PronounSentence], names: Sequence[str], src: Int[Tensor, "B S"]
) -> Float[Tensor, "B S names"]:
    """1 at the positions of each word, else 0."""
    indicators = torch.zeros(*src.shape, len(names), dtype=torch.float32, device="cpu")
    for row, case in enumerate(cases):
        for column, name in enumerate(names):
            indicators[row, list(getattr(case, name)), column] = 1
    return indicators.to(src.device)


def _rates_without(text_model: TextModel, cases: Sequence[PronounSentence], word: Occluded) -> tuple[Rate, Rate]:
    """How often the right pronoun is the more probable one, and how often the translation has it."""
    forced = written = 0
    for batch in _batches(cases):
        sources = [case.without(word, text_model.config.pad_id) for case in batch]
        forced += sum(odds > 0 for odds in log_odds(text_model, [case.example for case in batch], sources))
        texts = greedy(text_model, sources)
        written += sum(pronoun_is_right(case.example, text) for case, text in zip(batch, texts, strict=True))
    return Rate.counted(forced, len(cases)), Rate.counted(written, len(cases))


def log_odds(
    text_model: TextModel, pronoun_examples: Sequence[Example], sources: Sequence[Sequence[int]]
) -> list[float]:
    """The log-odds of the right pronoun against the wrong one, after the reference prefix."""
    parts = [_around_pronoun(example.target) for example in pronoun_examples]
    totals = []
    for texts in ([before + right for before, right, _ in parts], [before + wrong for before, _, wrong in parts]):
        log_probs = token_log_probs([text_model.model], sources, text_model.tokenizers[1].encode(texts))
        totals.append([sum(tokens[:-1]) for tokens in log_probs])  # without eos, since the text goes on
    return [right - wrong for right, wrong in zip(*totals, strict=True)]


def _around_pronoun(target: str) -> tuple[str, str, str]:
    """A target up to its pronoun, the right pronoun and the wrong one."""
    before, pronoun = re.findall(r"(.* parce qu')(il|elle)\b", target)[0]
    return before, pronoun, "elle" if pronoun == "il" else "il"


def greedy(text_model: TextModel, sources: Sequence[Sequence[int]]) -> list[str]:
    """Greedy translations of ids that may have padding among them."""
    models, search, pad_id = [text_model.model], text_model.search.greedy(), text_model.config.pad_id
    without_padding = [[token for token in ids if token != pad_id] for ids in sources]
    start = inference_backend(models, whole_search=False).start(sources)
    max_lengths = max_output_lengths([text_model.config], without_padding, search)
    hypotheses = greedy_search(start, max_lengths, search)
    return text_model.tokenizers[1].decode([hypothesis.ids for hypothesis in hypotheses])


def _batches(cases: Sequence[PronounSentence]) -> Iterator[Sequence[PronounSentence]]:
    for start in range(0, len(cases), _BATCH):
        yield cases[start : start + _BATCH]
