"""The operations of a static decoder step in plain torch: what `backends.cuda.triton_ops` is compared with."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from heed.backends.cuda.slots import Slots
from heed.backends.cuda.step_ops import EmbeddingParams, NormParams, ResidualNorm, SpecialIds, StepOps, StreamAndInput
from heed.model.attention import fused_attention


def embed(embedding: EmbeddingParams, slots: Slots) -> StreamAndInput:
    """The embedding of the newest token of each row."""
    x = embedding.table[slots.ids.flatten()] * embedding.scale
    if embedding.positions is not None:
        x = x + embedding.positions[_position_of_rows(slots)]
    x = x.to(embedding.table.dtype)
    return x, x if embedding.norm is None else _layer_norm(x, embedding.norm)


def add_residual_norm(
    x: Float[Tensor, "R D"], output: Float[Tensor, "R D"], residual_norm: ResidualNorm
) -> StreamAndInput:
    """Add a sub-layer's output, still without its bias, to the residual stream."""
    y = output + residual_norm.bias
    x = x + (y if residual_norm.outer_norm is None else _layer_norm(y, residual_norm.outer_norm))
    ready = _layer_norm(x, residual_norm.norm)
    return ready if residual_norm.is_post else x, ready


def self_attention(
    qkv: Float[Tensor, "R 3D"],
    bias: Float[Tensor, "3D"],
    slots: Slots,
    layer: int,
    rotation: Float[Tensor, "2 T half"] | None,
) -> Float[Tensor, "R D"]:
    """Self-attention: write the new keys and values to the cache; each row attends to its own past and itself."""
    past = slots.self_kv[layer]  # (2, R, T, H, K)
    rows, capacity, heads, width = past.shape[1:]
    row, time = torch.arange(rows, device=qkv.device), torch.arange(capacity, device=qkv.device)
    position = _position_of_rows(slots)
    q, k, v = (qkv + bias).view(rows, 3, heads, width).unbind(1)
    if rotation is not None:
        q, k = (_turned(x, rotation[:, position]) for x in (q, k))
    past[0, row, position], past[1, row, position] = k, v
    earlier = time < position[:, None]
    origin = torch.where(earlier, slots.kv_rows[position % 2, row], row[:, None])  # (R, T)
    keys, values = past[:, origin, time]
    return _attention(q[:, None], keys, values, earlier | (time == position[:, None])).flatten(1)


def cross_attention(
    queries: Float[Tensor, "R D"], bias: Float[Tensor, "D"], slots: Slots, layer: int
) -> Float[Tensor, "R D"]:
    """Cross-attention: all hypotheses of a sentence attend to its source."""
    keys, values = slots.cross_kv[layer]  # (B, S, H, K) each
    q = (queries + bias).view(slots.shape.slots, slots.shape.beam, *keys.shape[2:])
    real = torch.arange(keys.shape[1], device=keys.device) < slots.source_lengths[:, None]
    return _attention(q, keys, values, real).flatten(0, 1).flatten(1)


def beam_step(logits: Float[Tensor, "R V"], bias: Float[Tensor, "V"] | None, slots: Slots, special: SpecialIds) -> None:
    """A step of beam search for all unfinished sentences, as in `decoding.search`."""
    unfinished = (slots.finished == 0).nonzero()[:, 0]
    position, width = slots.positions[unfinished].long(), slots.shape.beam
    biased = logits if bias is None else logits + bias
    log_probs = biased.view(-1, width, biased.shape[-1])[unfinished].float().log_softmax(-1)
    allowed = _allowed(log_probs, position, slots, slots.max_lengths[unfinished], special)
    totals = (slots.live_log_probs[unfinished][..., None] + allowed).flatten(1)
    totals = totals.masked_fill(totals.isnan(), -torch.inf)
    size, length = log_probs.shape[-1], position[:, None]

    best = totals.sort(dim=-1, descending=True, stable=True)
    ending = best.values[:, :width].masked_fill(best.indices[:, :width] % size != special.eos_id, -torch.inf)
    finished = [
        getattr(slots, name)[unfinished]
        for name in ("finished_scores", "finished_log_probs", "finish_order", "finish_hypothesis", "truncated")
    ]
    ranks, parents = torch.arange(width, device=unfinished.device), best.indices[:, :width] // size
    forbidden = torch.tensor([special.pad_id, special.bos_id], device=unfinished.device)
    prefers_to_continue = log_probs.index_fill(-1, forbidden, -torch.inf).argmax(-1) != special.eos_id
    truncated = (prefers_to_continue & (position >= slots.max_lengths[unfinished])[:, None]).int().gather(1, parents)
    new = (ending / slots.length_penalties[length + 1], ending, length * width + ranks, parents, truncated)
    merged = [torch.cat(pair, 1) for pair in zip(finished, new, strict=True)]
    kept = merged[0].sort(dim=-1, descending=True, stable=True).indices[:, :width]
    slots.finished_scores[unfinished], slots.finished_log_probs[unfinished] = (
        each.gather(1, kept) for each in merged[:2]
    )
    slots.finish_order[unfinished], slots.finish_hypothesis[unfinished], slots.truncated[unfinished] = (
        each.gather(1, kept).int() for each in merged[2:]
    )

    is_eos = torch.arange(totals.shape[1], device=unfinished.device) % size == special.eos_id
    live = totals.masked_fill(is_eos, -torch.inf).sort(dim=-1, descending=True, stable=True)
    slots.live_log_probs[unfinished] = live.values[:, :width]
    tokens, parents = live.indices[:, :width] % size, live.indices[:, :width] // size
    slots.ids[unfinished] = tokens
    slots.tokens[unfinished, position], slots.parents[unfinished, position] = tokens.int(), parents.int()
    _reorder_kv_rows(parents, position, unfinished, slots)

    worst, best_live = slots.finished_scores[unfinished].amin(1), live.values[:, 0]
    penalty = torch.maximum(
        slots.length_penalties[slots.max_lengths[unfinished] + 1], slots.length_penalties[position + 2]
    )
    is_beaten = worst > -torch.inf if int(slots.rules[1]) else best_live / penalty <= worst
    done = (is_beaten | (best_live == -torch.inf)).int()
    slots.finished[unfinished], slots.positions[unfinished] = done, (position + 1 - done).int()


def _allowed(
    log_probs: Float[Tensor, "B W V"],
    position: Int[Tensor, "B"],
    slots: Slots,
    longest: Int[Tensor, "B"],
    special: SpecialIds,
) -> Float[Tensor, "B W V"]:
    tokens = torch.arange(log_probs.shape[-1], device=position.device)
    is_eos = tokens == special.eos_id
    may_end, may_continue = (position >= slots.rules[0])[:, None], (position < longest)[:, None]
    forbidden = (tokens == special.pad_id) | (tokens == special.bos_id)
    allowed = torch.where(is_eos, may_end, may_continue) & ~forbidden
    return log_probs.masked_fill(~allowed[:, None], -torch.inf)


def _reorder_kv_rows(
    parents: Int[Tensor, "B W"], position: Int[Tensor, "B"], unfinished: Int[Tensor, "B"], slots: Slots
) -> None:
    """Update the cache rows of each hypothesis: those of its parent, and the parent itself at the newest position."""
    width, capacity = slots.shape.beam, slots.shape.target_length
    parent_rows = unfinished[:, None] * width + parents
    rows = unfinished[:, None] * width + torch.arange(width, device=unfinished.device)
    kv_rows = slots.kv_rows[(position % 2)[:, None], parent_rows]  # (B, W, T)
    is_newest = torch.arange(capacity, device=unfinished.device) == position[:, None, None]
    slots.kv_rows[((position + 1) % 2)[:, None], rows] = torch.where(is_newest, parent_rows[..., None].int(), kv_rows)


def _position_of_rows(slots: Slots) -> Int[Tensor, "R"]:
    return slots.positions.long().repeat_interleave(slots.shape.beam)


def _layer_norm(x: Float[Tensor, "R D"], norm: NormParams) -> Float[Tensor, "R D"]:
    return functional.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)


def _turned(x: Float[Tensor, "R H K"], turns: Float[Tensor, "2 R half"]) -> Float[Tensor, "R H K"]:
    cos, sin = turns[:, :, None].to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def _attention(q: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
    """Attention of queries (N, Q, H, K) to the keys (N, S, H, K) where seen (N, S) is True."""
    scores = torch.einsum("nqhk,nshk->nhqs", q, keys) / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(~visible[:, None, None], -torch.inf).softmax(-1)
    return torch.einsum("nhqs,nshk->nqhk", weights, values)


REFERENCE = StepOps(embed, add_residual_norm, self_attention, cross_attention, beam_step, fused_attention)
