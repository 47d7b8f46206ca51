"""What a model loses without one of its pieces: a head, a sub-layer, a layer, or a sub-layer of every layer.

    ablation = ablate(translator, sources, references)
    ablation.changes[0].piece.name, .change, .low, .high

A sub-layer that is switched off adds nothing to what passes by it; the residual and the norms stay. A head that is
switched off gives zeros to W_O in place of its share. Nothing is trained again, so this tells what the model as it is
leans on, not what a model could do without. The model needs no change: hooks that exist only while it is measured do
it, in forced passes and in a search alike.

Changes have a 95 % interval by the paired bootstrap: both models are scored on the same sentences, drawn with
replacement. Enters: texts. Leaves: numbers. Knows nothing of tables and files.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Literal, cast

import numpy as np
import torch
from jaxtyping import Float
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor, nn

from heed.config import ModelConfig
from heed.errors import DataError, InputError
from heed.inference.translator import Translator
from heed.interpret.parts import attentions, parts
from heed.model.attention import MultiHeadAttention
from heed.model.layers import DecoderLayer, EncoderLayer, Residual
from heed.model.torch_state import torch_defaults
from heed.model.transformer import Transformer

Group = Literal["kind", "layer", "sub-layer", "head"]
Metric = Literal["log-prob", "exact", "bleu"]
Statistics = Float[np.ndarray, "sentences statistics"]  # what can be added up before a score is made of it

_SEED = 12345  # sacreBLEU's
_AT_A_TIME = 50  # resamples whose draws are held at once


@dataclass(frozen=True)
class Piece:
    """What is switched off together: whole sub-layers, or one head of one."""

    name: str  # `encoder.*.self`, `encoder.1`, `encoder.1.self` or `encoder.1.self.3`; all numbers count from 1
    group: Group
    sublayers: tuple[str, ...]
    head: int | None = None


@dataclass(frozen=True)
class Change:
    """What a score becomes without a piece."""

    piece: Piece
    value: float
    change: float  # value less that of the whole model: below zero, the piece was of help
    low: float
    high: float


@dataclass(frozen=True)
class Ablation:
    """The whole model's score, and that without each piece."""

    metric: Metric
    sentences: int
    whole: float
    changes: tuple[Change, ...]

    def of_heads(self) -> tuple[Float[np.ndarray, "attentions heads"], list[str]]:
        """The changes without each head, a row for each attention, and the rows' names."""
        heads = [one for one in self.changes if one.piece.group == "head"]
        rows = [(path, [one.change for one in row]) for (path,), row in groupby(heads, lambda one: one.piece.sublayers)]
        return np.array([row for _, row in rows]), [path for path, _ in rows]


@dataclass(frozen=True)
class _Measure:
    """A score in two steps, so that sentences can be drawn anew without translating them again."""

    statistics: Callable[[Translator, Sequence[str], Sequence[str]], Statistics]
    value: Callable[[np.ndarray], float]  # of the sum of some sentences' statistics


def pieces(config: ModelConfig) -> list[Piece]:
    """Everything that can be switched off in a model of these settings, the largest first."""
    sublayers = [name.removesuffix(".residual") for name in parts(config) if name.endswith(".residual")]

    def together(group: Group, name: Callable[[str], str]) -> list[Piece]:
        names = dict.fromkeys(map(name, sublayers))
        return [Piece(one, group, tuple(path for path in sublayers if name(path) == one)) for one in names]

    return [
        *together("kind", lambda path: re.sub(r"\d+", "*", path)),
        *together("layer", lambda path: path.rpartition(".")[0]),
        *together("sub-layer", lambda path: path),
        *(
            Piece(f"{path}.{head}", "head", (path,), head)
            for path in attentions(config)
            for head in range(1, config.heads + 1)
        ),
    ]


@contextmanager
def switched_off(model: Transformer, piece: Piece) -> Iterator[None]:
    """While this lasts, every pass of the model is one without the piece."""
    places = _places(model)
    with ExitStack() as hooks:
        for path in piece.sublayers:
            around, attention = places[path]
            if piece.head is None:
                # The last thing before the sum, whatever the order of norm and sum.
                hooks.enter_context(around.dropout.register_forward_hook(_nothing))
            elif attention is not None:
                zero = partial(_without_head, piece.head - 1, attention.split)
                hooks.enter_context(attention.output.register_forward_pre_hook(zero))
        yield


def _nothing(_: nn.Module, _taken: tuple[Any, ...], given: Tensor) -> Tensor:
    return torch.zeros_like(given)


def _without_head(head: int, split: tuple[int, int], _: nn.Module, taken: tuple[Tensor]) -> Tensor:
    heads = taken[0].unflatten(-1, split).clone()
    heads[..., head, :] = 0
    return heads.flatten(-2)


def _places(model: Transformer) -> dict[str, tuple[Residual, MultiHeadAttention | None]]:
    """What is around each sub-layer, and its attention if it is one."""
    places: dict[str, tuple[Residual, MultiHeadAttention | None]] = {}
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for number, module in enumerate(stack.layers if stack is not None else (), 1):
            layer = cast("EncoderLayer | DecoderLayer", module)
            places[f"{side}.{number}.self"] = layer.around_attention, layer.attention
            if isinstance(layer, DecoderLayer) and layer.around_cross_attention is not None:
                places[f"{side}.{number}.cross"] = layer.around_cross_attention, layer.cross_attention
            places[f"{side}.{number}.feed_forward"] = layer.around_feed_forward, None
    return places


@torch_defaults()
def ablate(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    metric: Metric = "log-prob",
    off: Iterable[Piece] | None = None,
    resamples: int = 1000,
) -> Ablation:
    """Score the model whole, then without each piece in turn; none named: all of them.

    log-prob    the log-probability of a reference token, its sentence's end included: a forced pass, quick and precise
    exact       translations that are their reference, in percent
    bleu        sacreBLEU's default
    """
    check(translator, sources, references)
    # By the model's own modules, which the hooks are on: an engine may have weights of its own.
    translator = Translator(
        translator.models,
        translator.tokenizers,
        translator.search,
        translator.max_tokens,
        splitter=translator.splitter,
        settings=translator.settings,
    )
    measure = _MEASURES[metric]
    whole = measure.statistics(translator, sources, references)
    tried: list[Piece] = []
    each = [whole]
    for piece in pieces(translator.model.config) if off is None else off:
        with switched_off(translator.model, piece):
            each.append(measure.statistics(translator, sources, references))
        tried.append(piece)
    values = [measure.value(statistics.sum(0)) for statistics in each]
    bounds = _intervals(np.stack(each), measure.value, resamples)
    changes = (
        Change(piece, value, value - values[0], low, high)
        for piece, value, (low, high) in zip(tried, values[1:], bounds, strict=True)
    )
    return Ablation(metric, len(sources), values[0], tuple(changes))


def check(translator: Translator, sources: Sequence[str], references: Sequence[str]) -> None:
    """What cannot be measured is refused before minutes are spent on it."""
    if (kind := translator.model.config.kind) != "encoder-decoder":
        raise InputError(f"ablation scores translations, and kind = {kind!r} makes none: expected 'encoder-decoder'")
    if len(translator.models) > 1:
        raise InputError(f"ablation is of one model at a time, found {len(translator.models)} that translate together")
    if len(sources) != len(references):
        raise DataError(f"{len(sources)} sources cannot be scored with {len(references)} references")
    if not sources:
        raise DataError("there is nothing to score: found no sentences")


def _intervals(
    each: Float[np.ndarray, "systems sentences statistics"], value: Callable[[np.ndarray], float], resamples: int
) -> list[tuple[float, float]]:
    """Of each system but the first, between what its lead over the first lies in 95 of 100 test sets drawn."""
    systems, sentences, statistics = each.shape
    flat = each.transpose(1, 0, 2).reshape(sentences, -1)
    draw = np.random.default_rng(_SEED)
    leads = []
    for start in range(0, resamples, _AT_A_TIME):
        count = min(_AT_A_TIME, resamples - start)
        times = draw.multinomial(sentences, np.full(sentences, 1 / sentences), count)  # each sentence is drawn so often
        sums = (times.astype(flat.dtype) @ flat).reshape(count, systems, statistics)
        for drawn in sums:
            first, *others = map(value, drawn)
            leads.append([other - first for other in others])
    low, high = np.quantile(np.array(leads), (0.025, 0.975), axis=0)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def _log_probs(translator: Translator, sources: Sequence[str], references: Sequence[str]) -> Statistics:
    return np.array([[sum(scores), len(scores)] for scores in translator.token_scores(sources, references)])


def _matches(translator: Translator, sources: Sequence[str], references: Sequence[str]) -> Statistics:
    pairs = zip(translator(list(sources)), references, strict=True)
    return np.array([[float(text.strip() == reference.strip()), 1.0] for text, reference in pairs])


def _bleu_counts(translator: Translator, sources: Sequence[str], references: Sequence[str]) -> Statistics:
    """Of each sentence the n-grams that match, those there are, and both lengths."""
    bleu = BLEU(force=True, effective_order=True)  # of one sentence; the counts do not depend on it
    pairs = zip(translator(list(sources)), references, strict=True)
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
