"""Statistics of the attention weights of each head over a corpus, and a one-word description of the head.

A row is one query, and each number is the mean over all rows of a head with more than one key: the decoder's first
token, for instance, can attend only to itself. Tokens are those of the model's vocabulary. On the target side, the row
of a token is the one that reads it and predicts the next.

    entropy      of the row's weights, in bits: uniform attention to n tokens has log2(n)
    evenness     entropy divided by its maximum: 1 is uniform attention
    distance     mean distance of the attended tokens; self-attention only
    previous     the weight on the token before, over rows that may attend to one
    same, next   the weight on the token itself, and on the one after, over rows that may attend to it
    end          the weight on ⟨/s⟩, where keys are source tokens
    start        the weight on ⟨s⟩, where keys are target tokens
    sharpness    the largest weight on one source token, over rows that predict a token; cross-attention only
    coverage     of each sentence, the number of different tokens with this largest weight, divided by its maximum: a
                 head that attends to one token everywhere is sharp, but aligns nothing

Enters: ids. Leaves: numbers. Knows nothing of text.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from heed.decoding.forced_decoding import teacher_forcing_batch
from heed.errors import DataError
from heed.interpret.observe import observe
from heed.interpret.parts import attentions
from heed.model.attention import fused_attention
from heed.model.torch_state import torch_defaults
from heed.model.transformer import Transformer

Description = Literal["previous token", "next token", "same token", "end", "start", "alignment", "broad", "mixed"]

# Token ids of sources and of targets, without special tokens; empty for a side that the model does not have.
IdBatch = tuple[list[Sequence[int]], list[Sequence[int]]]
Total: TypeAlias = tuple[Float[Tensor, "H"], Int[Tensor, ""]]  # a sum for each head, and the number of summands

DOMINANT_WEIGHT = 0.5  # from this mean weight on, a head is described by where it attends to
ALIGNMENT_SHARPNESS, ALIGNMENT_COVERAGE = 0.5, 0.5  # from these on, as an alignment head
BROAD_EVENNESS = 0.8  # from this on, as broad
_MAX_WEIGHTS = 2**25  # attention weights in memory at once


@dataclass(frozen=True)
class HeadStatistics:
    """The statistics of one head; none where one is not defined for its kind of attention."""

    path: str  # of its attention, such as `encoder.1.self`
    head: int  # from 1
    entropy: float
    evenness: float
    distance: float | None = None
    previous: float | None = None
    same: float | None = None
    next: float | None = None
    end: float | None = None
    start: float | None = None
    sharpness: float | None = None
    coverage: float | None = None

    @property
    def description(self) -> Description:
        """What the head does; mixed if nothing fits."""
        shares: dict[Description, float | None] = {
            "previous token": self.previous,
            "next token": self.next,
            "same token": self.same,
            "end": self.end,
            "start": self.start,
        }
        most = max(shares, key=lambda name: shares[name] or 0.0)
        if (shares[most] or 0.0) >= DOMINANT_WEIGHT:
            return most
        if (self.sharpness or 0.0) >= ALIGNMENT_SHARPNESS and (self.coverage or 0.0) >= ALIGNMENT_COVERAGE:
            return "alignment"
        return "broad" if self.evenness >= BROAD_EVENNESS else "mixed"


def batches(model: Transformer, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[IdBatch]:
    """Pairs of similar length, as many per batch as memory allows for their attention weights."""
    matrices = model.config.heads * len(attentions(model.config))  # per sentence pair
    pairs = sorted(zip(sources, targets, strict=True), key=_longest)
    result: list[IdBatch] = []
    for source, target in pairs:
        rows = len(result[-1][0]) + 1 if result else 0
        if not result or rows * matrices * _longest((source, target)) ** 2 > _MAX_WEIGHTS:
            result.append(([], []))
        result[-1][0].append(source)
        result[-1][1].append(target)
    return result


@torch_defaults()
def head_statistics(model: Transformer, pairs: Iterable[IdBatch]) -> list[HeadStatistics]:
    """The statistics of every head, in the order of computation."""
    paths = attentions(model.config)
    sums: dict[tuple[str, str], np.ndarray] = defaultdict(lambda: np.zeros(model.config.heads))
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for sources, targets in pairs:
        src, tgt_in, _ = teacher_forcing_batch(model, sources, targets)
        names = [f"{path}.{part}" for path in paths for part in ("weights", "mask")]
        sides = src if model.encoder is not None else None, tgt_in if model.decoder is not None else None
        activations = observe(model, *sides, names=names, attend=fused_attention)
        for path in paths:
            is_token = (src if path.startswith("encoder") else tgt_in) != model.config.pad_id
            statistics = attention_statistics(
                path, activations[f"{path}.weights"].float(), activations[f"{path}.mask"], is_token
            )
            for name, (total, count) in statistics.items():
                sums[path, name] += total.cpu().numpy()
                counts[path, name] += int(count)
    if not all(counts[path, "entropy"] for path in paths):
        raise DataError("no row has more than one key to attend to: expected sentences of more than one token")
    means = {key: sums[key] / count for key, count in counts.items() if count}
    return [
        HeadStatistics(path, head + 1, **{name: float(mean[head]) for (at, name), mean in means.items() if at == path})
        for path in paths
        for head in range(model.config.heads)
    ]


def attention_statistics(
    path: str, weights: Float[Tensor, "B H R C"], mask: Bool[Tensor, "B R C"], is_token: Bool[Tensor, "B R"]
) -> dict[str, Total]:
    """The statistics of this kind of attention, over the rows of a batch that are not padding and have several keys."""
    keys = mask.sum(-1)
    rows = is_token & (keys > 1)
    entropy = -(weights * weights.clamp(min=torch.finfo(weights.dtype).tiny).log2()).sum(-1)
    statistics = {
        "entropy": _total(entropy, rows),
        "evenness": _total(entropy / keys.clamp(min=2).log2()[:, None], rows),
    }
    if path.endswith("self"):
        statistics["distance"] = _total((weights * _distances(weights)).sum(-1), rows)
        for name, offset in (("previous", -1), ("same", 0), ("next", 1)):
            where = (mask & rows[..., None]).diagonal(offset, -2, -1)
            statistics[name] = _total(weights.diagonal(offset, -2, -1), where)
    if path.startswith("decoder") and path.endswith("self"):
        return statistics | {"start": _total(weights[..., 0], rows)}
    tokens = mask.any(1).sum(-1)  # of each source
    end = functional.one_hot(tokens - 1, weights.shape[-1]).bool()[:, None, None]  # (B, 1, 1, C)
    statistics["end"] = _total(weights.masked_fill(~end, 0.0).sum(-1), rows)
    if path.endswith("cross"):
        last = functional.one_hot(is_token.sum(-1) - 1, weights.shape[-2]).bool()  # the row that predicts eos
        statistics |= _alignment_statistics(weights.masked_fill(end, 0.0), rows & ~last, tokens - 1)
    return statistics


def _alignment_statistics(
    weights: Float[Tensor, "B H R C"], rows: Bool[Tensor, "B R"], tokens: Int[Tensor, "B"]
) -> dict[str, Total]:
    """Sharpness and coverage, from weights with ⟨/s⟩ masked out."""
    largest, positions = weights.max(-1)
    chosen = functional.one_hot(positions, weights.shape[-1]).bool() & rows[:, None, :, None]
    different = chosen.any(-2).sum(-1)  # (B, H)
    possible = rows.sum(-1).minimum(tokens)
    coverage = (different / possible.clamp(min=1)[:, None]).T  # (H, B)
    return {"sharpness": _total(largest, rows), "coverage": _total(coverage[None], (possible > 0)[None])}


def _total(values: Float[Tensor, "B H R"], where: Bool[Tensor, "B R"]) -> Total:
    return values.masked_fill(~where[:, None], 0.0).sum((0, 2)), where.sum()


def _distances(weights: Float[Tensor, "B H R R"]) -> Float[Tensor, "R R"]:
    positions = torch.arange(weights.shape[-1], device=weights.device, dtype=weights.dtype)
    return (positions[:, None] - positions).abs()


def _longest(pair: tuple[Sequence[int], Sequence[int]]) -> int:
    return max(map(len, pair)) + 1
