"""Ablation: a model's score without one head, one sub-layer, one layer, or one kind of sub-layer in every layer.

    ablation = ablate(translator, sources, references)
    ablation.changes[0].piece.name, .change, .low, .high

An ablated sub-layer adds zeros to the residual stream; the residual connection and the norms stay. An ablated head
gives zeros to W_O. Nothing is trained again, so this measures what the model as it is relies on, not what a model could
do without. The model needs no change: forward hooks that exist only while it is scored do it, in forced passes and in a
search alike.

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
Statistics = Float[np.ndarray, "sentences statistics"]  # summed over sentences, they give the score

_SEED = 12345  # sacreBLEU's
_AT_A_TIME = 50  # resamples in memory at once


@runtime_checkable
class Scorer(Protocol):
    """What is scored: a `Translator`, whose model's own modules must run, since the hooks are on them."""

    @property
    def models(self) -> list[Transformer]:
        """The model that is ablated; an ensemble is refused."""

    def token_scores(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[float]]:
        """The log-probability of each token of each target, and of the end after them."""

    def __call__(self, texts: list[str]) -> list[str]:
        """The translation of each text."""


@dataclass(frozen=True)
class Component:
    """What is ablated together: whole sub-layers, or one head of one."""

    name: str  # `encoder.*.self`, `encoder.1`, `encoder.1.self` or `encoder.1.self.3`; all numbers count from 1
    group: Group
    sublayers: tuple[str, ...]
    head: int | None = None


@dataclass(frozen=True)
class Change:
    """The score without a piece."""

    piece: Component
    value: float
    change: float  # value minus that of the whole model: below zero, the piece helped
    low: float
    high: float


@dataclass(frozen=True)
class Ablation:
    """The whole model's score, and that without each piece."""

    metric: Metric
    sentences: int
    whole: float
    changes: tuple[Change, ...]

    def head_changes(self) -> tuple[Float[np.ndarray, "attentions heads"], list[str]]:
        """The changes without each head, a row for each attention, and the rows' names."""
        heads = [one for one in self.changes if one.piece.group == "head"]
        rows = [(path, [one.change for one in row]) for (path,), row in groupby(heads, lambda one: one.piece.sublayers)]
        return np.array([row for _, row in rows]), [path for path, _ in rows]


@dataclass(frozen=True)
class _Measure:
    """A score in two steps, so that sentences can be resampled without translating them again."""

    statistics: Callable[[Scorer, Sequence[str], Sequence[str]], Statistics]
    value: Callable[[np.ndarray], float]  # from the sum of some sentences' statistics


def components(config: ModelConfig) -> list[Component]:
    """Every piece that can be ablated in a model of these settings, largest first."""
    sublayers = [name.removesuffix(".residual") for name in parts(config) if name.endswith(".residual")]

    def together(group: Group, name: Callable[[str], str]) -> list[Component]:
        names = dict.fromkeys(map(name, sublayers))
        return [Component(one, group, tuple(path for path in sublayers if name(path) == one)) for one in names]

    return [
        *together("kind", lambda path: re.sub(r"\d+", "*", path)),
        *together("layer", lambda path: path.rpartition(".")[0]),
        *together("sub-layer", lambda path: path),
        *(
            Component(f"{path}.{head}", "head", (path,), head)
            for path in attentions(config)
            for head in range(1, config.heads + 1)
        ),
    ]


@contextmanager
def ablated(model: Transformer, piece: Component) -> Iterator[None]:
    """While this lasts, every forward pass is without the piece; an error if the model's modules were not run."""
    sublayers, runs = _sublayers(model), [0]

    def count(*_: Any) -> None:
        runs[0] += 1

    with ExitStack() as hooks:
        for path in piece.sublayers:
            around, attention = sublayers[path]
            hooks.enter_context(around.dropout.register_forward_hook(count))
            if piece.head is None:
                # The last module before the residual sum, whatever the order of norm and sum.
                hooks.enter_context(around.dropout.register_forward_hook(_zeros))
            elif attention is not None:
                zero = partial(_without_head, piece.head - 1, attention.split)
                hooks.enter_context(attention.output.register_forward_pre_hook(zero))
        yield
    if not runs[0]:
        raise InputError(
            f"{piece.name} was not ablated: an engine with its own copy of the weights ran, not the model's modules; "
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
    found: dict[str, tuple[Residual, MultiHeadAttention | None]] = {}
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for number, module in enumerate(stack.layers if stack is not None else (), 1):
            layer = cast("EncoderLayer | DecoderLayer", module)
            found[f"{side}.{number}.self"] = layer.around_attention, layer.attention
            if isinstance(layer, DecoderLayer) and layer.around_cross_attention is not None:
                found[f"{side}.{number}.cross"] = layer.around_cross_attention, layer.cross_attention
            found[f"{side}.{number}.feed_forward"] = layer.around_feed_forward, None
    return found


@torch_defaults()
def ablate(
    scorer: Scorer,
    sources: Sequence[str],
    references: Sequence[str],
    metric: Metric = "log-prob",
    off: Iterable[Component] | None = None,
    resamples: int = 1000,
) -> Ablation:
    """Score the whole model, then the model without each piece in turn; off: the components, by default all.

    log-prob    mean log-probability of a reference token, sentence ends included: a forced pass, fast and precise
    exact       translations equal to their reference, in percent
    bleu        sacreBLEU's default
    """
    check(scorer, sources, references)
    (model,), measure = scorer.models, _MEASURES[metric]
    whole = measure.statistics(scorer, sources, references)
    tried: list[Component] = []
    each = [whole]
    for piece in components(model.config) if off is None else off:
        with ablated(model, piece):
            each.append(measure.statistics(scorer, sources, references))
        tried.append(piece)
    values = [measure.value(statistics.sum(0)) for statistics in each]
    bounds = _intervals(np.stack(each), measure.value, resamples)
    changes = (
        Change(piece, value, value - values[0], low, high)
        for piece, value, (low, high) in zip(tried, values[1:], bounds, strict=True)
    )
    return Ablation(metric, len(sources), values[0], tuple(changes))


def check(scorer: Scorer, sources: Sequence[str], references: Sequence[str]) -> None:
    """Refuse what cannot be scored before minutes are spent on it."""
    model, *others = scorer.models
    if (kind := model.config.kind) != "encoder-decoder":
        raise InputError(f"ablation scores translations, and kind = {kind!r} makes none: expected 'encoder-decoder'")
    if others:
        raise InputError(f"ablation is of one model at a time, found {len(scorer.models)} that translate together")
    if len(sources) != len(references):
        raise DataError(f"{len(sources)} sources cannot be scored with {len(references)} references")
    if not sources:
        raise DataError("there is nothing to score: found no sentences")


def _intervals(
    each: Float[np.ndarray, "systems sentences statistics"], value: Callable[[np.ndarray], float], resamples: int
) -> list[tuple[float, float]]:
    """Of each system but the first, the 95 % interval of its score minus the first system's."""
    systems, sentences, statistics = each.shape
    flat = each.transpose(1, 0, 2).reshape(sentences, -1)
    draw = np.random.default_rng(_SEED)
    differences = []
    for start in range(0, resamples, _AT_A_TIME):
        count = min(_AT_A_TIME, resamples - start)
        times = draw.multinomial(
            sentences, np.full(sentences, 1 / sentences), count
        )  # how often each sentence is drawn
        sums = (times.astype(flat.dtype) @ flat).reshape(count, systems, statistics)
        for drawn in sums:
            first, *others = map(value, drawn)
            differences.append([other - first for other in others])
    low, high = np.quantile(np.array(differences), (0.025, 0.975), axis=0)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def _log_probs(scorer: Scorer, sources: Sequence[str], references: Sequence[str]) -> Statistics:
    return np.array([[sum(scores), len(scores)] for scores in scorer.token_scores(sources, references)])


def _matches(scorer: Scorer, sources: Sequence[str], references: Sequence[str]) -> Statistics:
    pairs = zip(scorer(list(sources)), references, strict=True)
    return np.array([[float(text.strip() == reference.strip()), 1.0] for text, reference in pairs])


def _bleu_counts(scorer: Scorer, sources: Sequence[str], references: Sequence[str]) -> Statistics:
    """Of each sentence: matching n-grams, all n-grams, and both lengths."""
    bleu = BLEU(force=True, effective_order=True)  # of one sentence; the counts do not depend on it
    pairs = zip(scorer(list(sources)), references, strict=True)
    found = [bleu.sentence_score(text, [reference]) for text, reference in pairs]
    return np.array([[*one.counts, *one.totals, one.sys_len, one.ref_len] for one in found], np.float64)


def _bleu(sums: np.ndarray) -> float:
    *counts, written, wanted = (int(number) for number in sums)
    return float(BLEU.compute_bleu(counts[:4], counts[4:], written, wanted, smooth_method="exp").score)


_MEASURES: dict[Metric, _Measure] = {
    "log-prob": _Measure(_log_probs, lambda sums: float(sums[0] / sums[1])),
    "exact": _Measure(_matches, lambda sums: float(100 * sums[0] / sums[1])),
    "bleu": _Measure(_bleu_counts, _bleu),
}
