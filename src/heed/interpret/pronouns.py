"""The pronoun case, measured: does attention find the antecedent of `it`, and what does the translation depend on?

    The animal didn't cross the street because it was too tired.    it = the animal, subject: il
    The animal didn't cross the street because it was too wide.     it = the street, object: elle

The sentences are the built-in corpus's held-out ones whose two nouns differ in gender, so that French must know; in
one half of them `it` means the subject, in the other the object. Three questions:

Which head finds the antecedent?  For each encoder head, in how many sentences `it`, or else the adjective that
disambiguates it, puts more attention weight on the antecedent than on the other noun. Always preferring the subject,
say, gives 50 %. An untrained model of the same shape is the baseline: intervals are over sentences, and adjectives are
few, so one that prefers the right noun by accident decides many sentences.

What does the decoder attend to?  The weights of each cross-attention head where il or elle is predicted.

What does the pronoun depend on?  Occlusion: a source word is replaced by padding, which is masked, and il or elle is
chosen again: `forced`, the more probable of the two after the true prefix, whose French still shows both nouns; and
`written`, the one in a greedy translation of the remaining source.

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
from heed.config import SearchConfig
from heed.decoding.decode import greedy_search
from heed.decoding.engine import max_output_lengths
from heed.decoding.forced_decoding import teacher_forcing_batch, token_log_probs
from heed.errors import DataError, InputError
from heed.interpret.observe import observe
from heed.interpret.tokens import TextModel, Tokens
from heed.microworld import words
from heed.microworld.corpus import Example, examples, pronoun_is_right
from heed.model.attention import fused_attention
from heed.model.torch_state import float32_by_default, torch_defaults
from heed.model.transformer import Transformer
from heed.text.tokenizer import Tokenizer

Removed = Literal["nothing", "antecedent", "other noun", "adjective"]
Looker = Literal["it", "adjective"]
LOOKERS: tuple[Looker, ...] = ("it", "adjective")
REMOVED: tuple[Removed, ...] = ("nothing", "antecedent", "other noun", "adjective")

_GENDERS = {
    noun.english: noun.gender
    for nouns in (words.ANIMALS.nouns, *(hindrance.objects for hindrance in words.HINDRANCES))
    for noun in nouns
}
_BATCH = 250  # sentences
_Z = 1.959964  # standard deviations of a normal distribution's 95 % interval


@dataclass(frozen=True)
class Rate:
    """A proportion with Wilson's 95 % interval, which holds near 0 and 1 too."""

    found: int
    of: int
    share: float
    low: float
    high: float

    @classmethod
    def counted(cls, found: int, of: int) -> "Rate":
        """The rate of a count."""
        share, per = found / of, _Z**2 / of
        half = _Z * math.sqrt(share * (1 - share) / of + per / of / 4)
        return cls(found, of, share, *((share + per / 2 + end) / (1 + per) for end in (-half, half)))


@dataclass(frozen=True)
class Finding:
    """How often `looker` puts more weight on the antecedent, in one encoder head; layer and head count from 1."""

    looker: Looker
    layer: int
    head: int
    trained: Rate
    untrained: Rate
    on_antecedent: float  # mean weights, of the trained model
    on_other: float


@dataclass(frozen=True)
class Glance:
    """The mean weight of one cross-attention head on each word where il or elle is predicted."""

    layer: int
    head: int
    it: float
    antecedent: float
    other: float
    adjective: float


@dataclass(frozen=True)
class Removal:
    """How often il or elle is right without a source word."""

    removed: Removed
    forced: Rate
    written: Rate


@dataclass(frozen=True)
class PronounCase:
    """The answers to all three questions."""

    sentences: int
    findings: tuple[Finding, ...]
    glances: tuple[Glance, ...]
    removals: tuple[Removal, ...]


@dataclass(frozen=True)
class Case:
    """A sentence, its ids, and the positions of the words in question."""

    example: Example
    ids: tuple[int, ...]
    it: tuple[int, ...]
    antecedent: tuple[int, ...]
    other: tuple[int, ...]
    adjective: tuple[int, ...]

    def without(self, removed: Removed, pad_id: int) -> list[int]:
        """The ids, with padding in place of the removed word."""
        gone = {"nothing": (), "antecedent": self.antecedent, "other noun": self.other, "adjective": self.adjective}
        return [pad_id if place in gone[removed] else token for place, token in enumerate(self.ids)]


@torch_defaults()
def pronoun_case(text_model: TextModel, sentences: int = 1000, seed: int = 0) -> PronounCase:
    """Measure all of it; seed: of the sentences and of the untrained model's weights."""
    model, config = text_model.model, text_model.config
    if config.kind != "encoder-decoder":
        raise InputError(f"pronouns are translated, and kind = {config.kind!r} does not translate")
    if sentences < 2 or sentences % 2:
        raise DataError(f"expected an even number of sentences, one half for either meaning; found {sentences}")
    cases = [case_of(example, text_model.tokenizers[0]) for example in telling(sentences, seed)]
    trained, fresh = looks(model, cases), looks(untrained(model, seed), cases)
    right, right_untrained = ((found[..., 0] > found[..., 1]).sum(0) for found in (trained, fresh))
    means = trained.mean(0)
    findings = (
        Finding(
            LOOKERS[looker],
            layer + 1,
            head + 1,
            Rate.counted(int(right[looker, layer, head]), sentences),
            Rate.counted(int(right_untrained[looker, layer, head]), sentences),
            *means[looker, layer, head].tolist(),
        )
        for looker, layer, head in np.ndindex(right.shape)
    )
    across = glances(text_model, cases).mean(0)
    glanced = (
        Glance(layer + 1, head + 1, *across[layer, head].tolist()) for layer, head in np.ndindex(across.shape[:2])
    )
    removals = (Removal(removed, *_chosen(text_model, cases, removed)) for removed in REMOVED)
    return PronounCase(sentences, tuple(findings), tuple(glanced), tuple(removals))


def telling(count: int, seed: int) -> list[Example]:
    """Different held-out sentences whose nouns differ in gender; `it` means the subject in exactly half of them."""
    found: dict[str, Example] = {}
    missing = {"subject": count // 2, "object": count - count // 2}
    for example in examples("test", seed):
        meant = example.antecedent
        if meant and missing[meant] and example.source not in found and _genders_differ(example):
            found[example.source] = example
            missing[meant] -= 1
        if not any(missing.values()):
            break
    return list(found.values())


def _genders_differ(example: Example) -> bool:
    return _GENDERS[str(example.subject)] != _GENDERS[str(example.object)]


def case_of(example: Example, tokenizer: Tokenizer) -> Case:
    """The positions of the words in a sentence, however many tokens they are."""
    found = re.fullmatch(
        rf".*\b(?P<subject>{example.subject}) didn't .*\b(?P<object>{example.object})"
        r" because (?P<it>it) was \w+ (?P<adjective>.+)\.",
        example.source,
    )
    if found is None or example.antecedent is None:
        raise DataError(f"expected a sentence with 'because it was', found {example.source!r}")
    (ids,) = tokenizer.encode([example.source])
    spans = Tokens.of(tokenizer, ids).spans
    places = {
        name: tuple(
            place for place, (first, end) in enumerate(spans) if first < found.end(name) and end > found.start(name)
        )
        for name in ("subject", "object", "it", "adjective")
    }
    other = "object" if example.antecedent == "subject" else "subject"
    return Case(example, tuple(ids), places["it"], places[example.antecedent], places[other], places["adjective"])


def untrained(model: Transformer, seed: int) -> Transformer:
    """A model of the same shape with random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        with torch_defaults(), float32_by_default():
            fresh = Transformer(model.config)
    return fresh.to(model.vocabulary.embedding.weight).eval()


def looks(model: Transformer, cases: Sequence[Case]) -> Float[np.ndarray, "N Q L H 2"]:
    """The weight that each looker puts on the antecedent and on the other noun, in every encoder layer and head."""
    names = [f"encoder.{layer}.self.weights" for layer in range(1, model.config.encoder_layers + 1)]
    found = []
    for some in _portions(cases):
        src, tgt_in, _ = teacher_forcing_batch(model, [case.ids for case in some], [[] for _ in some])
        seen = observe(model, src, tgt_in, names=names, attend=fused_attention)
        weights = torch.stack([seen[name] for name in names], 1).float()  # (B, L, H, S, S)
        lookers, nouns = _marked(some, LOOKERS, src), _marked(some, ("antecedent", "other"), src)
        rows = lookers / lookers.sum(1, keepdim=True)  # of a word of several tokens, their mean
        found.append(torch.einsum("blhrc,brq,bcn->bqlhn", weights, rows, nouns).cpu().numpy())
    return np.concatenate(found)


def glances(text_model: TextModel, cases: Sequence[Case]) -> Float[np.ndarray, "N L H 4"]:
    """The weight on `it`, antecedent, other noun and adjective as each cross head predicts il or elle."""
    model, encode = text_model.model, text_model.tokenizers[1].encode
    names = [f"decoder.{layer}.cross.weights" for layer in range(1, model.config.decoder_layers + 1)]
    found = []
    for some in _portions(cases):
        before = encode([_around_pronoun(case.example.target)[0] for case in some])
        src, tgt_in, _ = teacher_forcing_batch(model, [case.ids for case in some], before)
        seen = observe(model, src, tgt_in, names=names, attend=fused_attention)
        weights = torch.stack([seen[name] for name in names], 1).float()  # (B, L, H, T, S)
        last = (tgt_in != model.config.pad_id).sum(1) - 1
        rows = weights[torch.arange(len(some)), :, :, last]  # (B, L, H, S)
        marks = _marked(some, ("it", "antecedent", "other", "adjective"), src)
        found.append(torch.einsum("blhc,bcn->blhn", rows, marks).cpu().numpy())
    return np.concatenate(found)


def _marked(cases: Sequence[Case], names: Sequence[str], src: Int[Tensor, "B S"]) -> Float[Tensor, "B S names"]:
    """1 at the positions of each word, else 0."""
    marks = torch.zeros(*src.shape, len(names), dtype=torch.float32, device="cpu")
    for row, case in enumerate(cases):
        for number, name in enumerate(names):
            marks[row, list(getattr(case, name)), number] = 1
    return marks.to(src.device)


def _chosen(text_model: TextModel, cases: Sequence[Case], removed: Removed) -> tuple[Rate, Rate]:
    """How often the right pronoun is the more probable one, and how often it is in the translation."""
    forced = written = 0
    for some in _portions(cases):
        sources = [case.without(removed, text_model.config.pad_id) for case in some]
        forced += sum(odds > 0 for odds in log_odds(text_model, [case.example for case in some], sources))
        texts = greedy(text_model, sources)
        written += sum(pronoun_is_right(case.example, text) for case, text in zip(some, texts, strict=True))
    return Rate.counted(forced, len(cases)), Rate.counted(written, len(cases))


def log_odds(text_model: TextModel, asked: Sequence[Example], sources: Sequence[Sequence[int]]) -> list[float]:
    """The log-odds of the right pronoun against the wrong one, after the true prefix."""
    parts = [_around_pronoun(example.target) for example in asked]
    totals = []
    for texts in ([before + right for before, right, _ in parts], [before + wrong for before, _, wrong in parts]):
        found = token_log_probs([text_model.model], sources, text_model.tokenizers[1].encode(texts))
        totals.append([sum(tokens[:-1]) for tokens in found])  # without the end, since the text goes on
    return [right - wrong for right, wrong in zip(*totals, strict=True)]


def _around_pronoun(target: str) -> tuple[str, str, str]:
    """A target up to its pronoun, the pronoun, and the one that it is not."""
    before, pronoun = re.findall(r"(.* parce qu')(il|elle)\b", target)[0]
    return before, pronoun, "elle" if pronoun == "il" else "il"


def greedy(text_model: TextModel, sources: Sequence[Sequence[int]]) -> list[str]:
    """Greedy translations of ids that may have padding among them."""
    models, search, pad_id = [text_model.model], SearchConfig(beam=1), text_model.config.pad_id
    real = [[token for token in ids if token != pad_id] for ids in sources]
    start = inference_backend(models, whole_search=False).start(sources)
    found = greedy_search(start, max_output_lengths([text_model.config], real, search), search)
    return text_model.tokenizers[1].decode([one.ids for one in found])


def _portions(cases: Sequence[Case]) -> Iterator[Sequence[Case]]:
    for start in range(0, len(cases), _BATCH):
        yield cases[start : start + _BATCH]
