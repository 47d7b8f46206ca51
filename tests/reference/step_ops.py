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
    return x, x if embedding.norm is None else _normal(x, embedding.norm)


def add_residual_norm(
    x: Float[Tensor, "R D"], output: Float[Tensor, "R D"], residual_norm: ResidualNorm
) -> StreamAndInput:
    """Add a sub-layer's output, still without its bias, to the residual stream."""
    y = output + residual_norm.bias
    x = x + (y if residual_norm.outer_norm is None else _normal(y, residual_norm.outer_norm))
    ready = _normal(x, residual_norm.norm)
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
    going = (slots.finished == 0).nonzero()[:, 0]
    position, width = slots.positions[going].long(), slots.shape.beam
    scored = logits if bias is None else logits + bias
    log_probs = scored.view(-1, width, scored.shape[-1])[going].float().log_softmax(-1)
    allowed = _allowed(log_probs, position, slots, slots.max_lengths[going], special)
    totals = (slots.live_log_probs[going][..., None] + allowed).flatten(1)
    totals = totals.masked_fill(totals.isnan(), -torch.inf)
    size, time = log_probs.shape[-1], position[:, None]

    best = totals.sort(dim=-1, descending=True, stable=True)
    ending = best.values[:, :width].masked_fill(best.indices[:, :width] % size != special.eos_id, -torch.inf)
    ended = [
        getattr(slots, name)[going]
        for name in ("finished_scores", "finished_log_probs", "finish_order", "finish_hypothesis", "truncated")
    ]
    ranks, parents = torch.arange(width, device=going.device), best.indices[:, :width] // size
    never = torch.tensor([special.pad_id, special.bos_id], device=going.device)
    wants_more = log_probs.index_fill(-1, never, -torch.inf).argmax(-1) != special.eos_id
    cut_off = (wants_more & (position >= slots.max_lengths[going])[:, None]).int().gather(1, parents)
    new = (ending / slots.length_penalties[time + 1], ending, time * width + ranks, parents, cut_off)
    merged = [torch.cat(pair, 1) for pair in zip(ended, new, strict=True)]
    kept = merged[0].sort(dim=-1, descending=True, stable=True).indices[:, :width]
    slots.finished_scores[going], slots.finished_log_probs[going] = (each.gather(1, kept) for each in merged[:2])
    slots.finish_order[going], slots.finish_hypothesis[going], slots.truncated[going] = (
        each.gather(1, kept).int() for each in merged[2:]
    )

    ends = torch.arange(totals.shape[1], device=going.device) % size == special.eos_id
    live = totals.masked_fill(ends, -torch.inf).sort(dim=-1, descending=True, stable=True)
    slots.live_log_probs[going] = live.values[:, :width]
    words, parents = live.indices[:, :width] % size, live.indices[:, :width] // size
    slots.ids[going] = words
    slots.tokens[going, position], slots.parents[going, position] = words.int(), parents.int()
    _follow(parents, position, going, slots)

    worst, likeliest = slots.finished_scores[going].amin(1), live.values[:, 0]
    furthest = torch.maximum(slots.length_penalties[slots.max_lengths[going] + 1], slots.length_penalties[position + 2])
    enough = worst > -torch.inf if int(slots.rules[1]) else likeliest / furthest <= worst
    over = (enough | (likeliest == -torch.inf)).int()
    slots.finished[going], slots.positions[going] = over, (position + 1 - over).int()


def _allowed(
    log_probs: Float[Tensor, "B W V"],
    position: Int[Tensor, "B"],
    slots: Slots,
    longest: Int[Tensor, "B"],
    special: SpecialIds,
) -> Float[Tensor, "B W V"]:
    words = torch.arange(log_probs.shape[-1], device=position.device)
    ends = words == special.eos_id
    may_end, may_go_on = (position >= slots.rules[0])[:, None], (position < longest)[:, None]
    never = (words == special.pad_id) | (words == special.bos_id)
    allowed = torch.where(ends, may_end, may_go_on) & ~never
    return log_probs.masked_fill(~allowed[:, None], -torch.inf)


def _follow(parents: Int[Tensor, "B W"], position: Int[Tensor, "B"], going: Int[Tensor, "B"], slots: Slots) -> None:
    """Update the cache row of each hypothesis at every time: that of its parent, and the parent's row for this step."""
    width, capacity = slots.shape.beam, slots.shape.target_length
    origin = going[:, None] * width + parents
    own = going[:, None] * width + torch.arange(width, device=going.device)
    lines = slots.kv_rows[(position % 2)[:, None], origin]  # (B, W, T)
    now = torch.arange(capacity, device=going.device) == position[:, None, None]
    slots.kv_rows[((position + 1) % 2)[:, None], own] = torch.where(now, origin[..., None].int(), lines)


def _position_of_rows(slots: Slots) -> Int[Tensor, "R"]:
    return slots.positions.long().repeat_interleave(slots.shape.beam)


def _normal(x: Float[Tensor, "R D"], norm: NormParams) -> Float[Tensor, "R D"]:
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
