"""Ablation: the score of a model without one head, one sub-layer, one layer, or one kind of sub-layer.

    ablation = ablate(translator, sources, references)
    ablation.changes[0].piece.name, .change, .low, .high

An ablated sub-layer adds zeros to the residual stream; the residual connection and the norms stay. An ablated head
gives zeros to W_O. Nothing is retrained, so this measures what the trained model relies on, not what a model could do
without. The model needs no change: it is done by forward hooks that exist only while the model is scored, in forced
decoding and in a search alike.

Changes have a 95 % interval by the paired bootstrap: both models are scored on the same sentences, resampled with
replacement. Enters: texts. Leaves: numbers. Knows nothing of tables and files.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Literal, Protocol, cast, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor, nn

from heed.config import ModelConfig
from heed.errors import DataError, InputError
from heed.interpret.parts import attentions, parts
from heed.model.attention import MultiHeadAttention
from heed.model.layers import DecoderLayer, EncoderLayer, Residual
from heed.model.torch_state import torch_defaults
from heed.model.transformer import Transformer

Group = Literal["kind", "layer", "sub-layer", "head"]
Metric = Literal["log-prob", "exact", "bleu"]
Statistics = Float[np.ndarray, "sentences statistics"]  # the score is a function of their sum over sentences

_SEED = 12345  # the same as sacreBLEU's
_RESAMPLES_PER_CHUNK = 50  # in memory at once


@runtime_checkable
class Scorer(Protocol):
    """A `Translator` that runs the model's PyTorch modules, since the hooks are on them."""

    @property
    def models(self) -> list[Transformer]:
        """The model to ablate; an ensemble is refused."""

    def token_scores(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[float]]:
        """The log-probability of each token of each target, and of eos."""

    def __call__(self, texts: list[str]) -> list[str]:
        """The translation of each text."""


@dataclass(frozen=True)
class Component:
    """What is ablated together: one or more sub-layers, or one head."""

    name: str  # `encoder.*.self`, `encoder.1`, `encoder.1.self` or `encoder.1.self.3`; numbers count from 1
    group: Group
    sublayers: tuple[str, ...]
    head: int | None = None


@dataclass(frozen=True)
class Change:
    """The score without one component, compared with the whole model's."""

    piece: Component  # `piece` is its key in the JSON of `heed ablate`
    value: float
    change: float  # value minus the whole model's: below zero, the component helped
    low: float  # of the 95 % interval of the change
    high: float


@dataclass(frozen=True)
class Ablation:
    """The score of the whole model, and the change without each component."""

    metric: Metric
    sentences: int
    whole: float
    changes: tuple[Change, ...]

    def head_changes(self) -> tuple[Float[np.ndarray, "attentions heads"], list[str]]:
        """The changes without each head, a row per attention sub-layer, and the names of the rows."""
        heads = [change for change in self.changes if change.piece.group == "head"]
        rows = [
            (path, [change.change for change in row])
            for (path,), row in groupby(heads, lambda change: change.piece.sublayers)
        ]
        return np.array([row for _, row in rows]), [path for path, _ in rows]


@dataclass(frozen=True)
class _Score:
    """A score in two steps, so that sentences can be resampled without translating them again."""

    statistics: Callable[[Scorer, Sequence[str], Sequence[str]], Statistics]
    value: Callable[[np.ndarray], float]  # from the sum of some sentences' statistics


def components(config: ModelConfig) -> list[Component]:
    """Every component that can be ablated in a model of these settings, largest first."""
    sublayers = [name.removesuffix(".residual") for name in parts(config) if name.endswith(".residual")]

    def grouped(group: Group, name: Callable[[str], str]) -> list[Component]:
        names = dict.fromkeys(map(name, sublayers))
        return [Component(each, group, tuple(path for path in sublayers if name(path) == each)) for each in names]

    return [
        *grouped("kind", lambda path: re.sub(r"\d+", "*", path)),
        *grouped("layer", lambda path: path.rpartition(".")[0]),
        *grouped("sub-layer", lambda path: path),
        *(
            Component(f"{path}.{head}", "head", (path,), head)
            for path in attentions(config)
            for head in range(1, config.heads + 1)
        ),
    ]


@contextmanager
def ablated(model: Transformer, component: Component) -> Iterator[None]:
    """A context in which forward passes run without the component; raises if the model's modules were never run."""
    sublayers, runs = _sublayers(model), [0]

    def count(*_: Any) -> None:
        runs[0] += 1

    with ExitStack() as hooks:
        for path in component.sublayers:
            around, attention = sublayers[path]
            hooks.enter_context(around.dropout.register_forward_hook(count))
            if component.head is None:
                # The last module before the residual sum, whatever the order of norm and sum.
                hooks.enter_context(around.dropout.register_forward_hook(_zeros))
            elif attention is not None:
                zero = partial(_without_head, component.head - 1, attention.split)
                hooks.enter_context(attention.output.register_forward_pre_hook(zero))
        yield
    if not runs[0]:
        raise InputError(
            f"{component.name} was not ablated: an engine with its own copy of the weights ran, not PyTorch modules; "
            "score heed.inference.open.with_pytorch_modules(translator) instead"
        )


def _zeros(_: nn.Module, _inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    return torch.zeros_like(output)


def _without_head(head: int, split: tuple[int, int], _: nn.Module, inputs: tuple[Tensor]) -> Tensor:
    heads = inputs[0].unflatten(-1, split).clone()
    heads[..., head, :] = 0
    return heads.flatten(-2)


def _sublayers(model: Transformer) -> dict[str, tuple[Residual, MultiHeadAttention | None]]:
    """The residual connection around each sub-layer, and its attention if it has one."""
    sublayers: dict[str, tuple[Residual, MultiHeadAttention | None]] = {}
    for side, stack in zip(("encoder", "decoder"), model.attention_stacks(), strict=True):
        for number, module in enumerate(stack.layers if stack is not None else (), 1):
            layer = cast("EncoderLayer | DecoderLayer", module)
            sublayers[f"{side}.{number}.self"] = layer.around_attention, layer.attention
            if isinstance(layer, DecoderLayer) and layer.around_cross_attention is not None:
                sublayers[f"{side}.{number}.cross"] = layer.around_cross_attention, layer.cross_attention
            sublayers[f"{side}.{number}.feed_forward"] = layer.around_feed_forward, None
    return sublayers


@torch_defaults()
def ablate(
    scorer: Scorer,
    sources: Sequence[str],
    references: Sequence[str],
    metric: Metric = "log-prob",
    chosen: Iterable[Component] | None = None,
    resamples: int = 1000,
) -> Ablation:
    """Score the whole model, then the model without each component in turn; chosen: which ones, by default all.

    log-prob    mean log-probability per reference token, eos included: forced decoding, fast and precise
    exact       percentage of translations equal to their reference
    bleu        sacreBLEU's default
    """
    check(scorer, sources, references)
    (model,), score = scorer.models, _SCORES[metric]
    ablations: list[Component] = []
    statistics = [score.statistics(scorer, sources, references)]
    for component in components(model.config) if chosen is None else chosen:
        with ablated(model, component):
            statistics.append(score.statistics(scorer, sources, references))
        ablations.append(component)
    values = [score.value(of_system.sum(0)) for of_system in statistics]
    bounds = _intervals(np.stack(statistics), score.value, resamples)
    changes = (
        Change(component, value, value - values[0], low, high)
        for component, value, (low, high) in zip(ablations, values[1:], bounds, strict=True)
    )
    return Ablation(metric, len(sources), values[0], tuple(changes))


def check(scorer: Scorer, sources: Sequence[str], references: Sequence[str]) -> None:
    """Refuse models and texts that cannot be scored, before minutes are spent on them."""
    model, *others = scorer.models
    if (kind := model.config.kind) != "encoder-decoder":
        raise InputError(f"ablation scores translations: expected kind = 'encoder-decoder', found kind = {kind!r}")
    if others:
        raise InputError(f"ablation is of one model, found an ensemble of {len(scorer.models)}")
    if len(sources) != len(references):
        raise DataError(f"found {len(sources)} sources and {len(references)} references: expected as many of each")
    if not sources:
        raise DataError("found no sentences to score")


def _intervals(
    per_sentence: Float[np.ndarray, "systems sentences statistics"],
    value: Callable[[np.ndarray], float],
    resamples: int,
) -> list[tuple[float, float]]:
    """The 95 % interval of the score of each system but the first, minus the first system's."""
    systems, sentences, statistics = per_sentence.shape
    flat = per_sentence.transpose(1, 0, 2).reshape(sentences, -1)
    generator = np.random.default_rng(_SEED)
    differences = []
    for start in range(0, resamples, _RESAMPLES_PER_CHUNK):
        count = min(_RESAMPLES_PER_CHUNK, resamples - start)
        # How often each sentence is drawn.
        draws = generator.multinomial(sentences, np.full(sentences, 1 / sentences), count)
        sums = (draws.astype(flat.dtype) @ flat).reshape(count, systems, statistics)
        for resample in sums:
            first, *rest = map(value, resample)
            differences.append([other - first for other in rest])
    low, high = np.quantile(np.array(differences), (0.025, 0.975), axis=0)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def _log_probs(scorer: Scorer, sources: Sequence[str], references: Sequence[str]) -> Statistics:
    return np.array([[sum(scores), len(scores)] for scores in scorer.token_scores(sources, references)])


def _matches(scorer: Scorer, sources: Sequence[str], references: Sequence[str]) -> Statistics:
    pairs = zip(scorer(list(sources)), references, strict=True)
    return np.array([[float(text.strip() == reference.strip()), 1.0] for text, reference in pairs])


def _bleu_counts(scorer: Scorer, sources: Sequence[str], references: Sequence[str]) -> Statistics:
    """Per sentence: matching n-grams, all n-grams, and the lengths of translation and reference."""
    bleu = BLEU(force=True, effective_order=True)  # for sentence scores; the counts do not depend on it
    pairs = zip(scorer(list(sources)), references, strict=True)
    scores = [bleu.sentence_score(text, [reference]) for text, reference in pairs]
    return np.array([[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores], np.float64)


def _bleu(sums: np.ndarray) -> float:
    *counts, length, reference_length = (int(number) for number in sums)
    return float(BLEU.compute_bleu(counts[:4], counts[4:], length, reference_length, smooth_method="exp").score)


_SCORES: dict[Metric, _Score] = {
    "log-prob": _Score(_log_probs, lambda sums: float(sums[0] / sums[1])),
    "exact": _Score(_matches, lambda sums: float(100 * sums[0] / sums[1])),
    "bleu": _Score(_bleu_counts, _bleu),
}
