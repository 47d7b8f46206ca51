"""The operations of a static decoder step in plain torch: what `backends.cuda.triton_ops` is compared with."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from heed.backends.cuda.slots import Slots
from heed.backends.cuda.step_ops import Closing, Norm, Special, StepOps, Two, Words
from heed.model.attention import fused_attention


def embed(words: Words, slots: Slots) -> Two:
    """The newest word of each row."""
    x = words.matrix[slots.ids.flatten()] * words.scale
    if words.places is not None:
        x = x + words.places[_position_of_rows(slots)]
    x = x.to(words.matrix.dtype)
    return x, x if words.norm is None else _normal(x, words.norm)


def add_residual_norm(x: Float[Tensor, "R D"], found: Float[Tensor, "R D"], closing: Closing) -> Two:
    """What a sub-layer found, without its bias yet, joins the stream."""
    y = found + closing.bias
    x = x + (y if closing.outer is None else _normal(y, closing.outer))
    ready = _normal(x, closing.norm)
    return ready if closing.post else x, ready


def self_attention(
    qkv: Float[Tensor, "R 3D"],
    bias: Float[Tensor, "3D"],
    slots: Slots,
    layer: int,
    turns: Float[Tensor, "2 T half"] | None,
) -> Float[Tensor, "R D"]:
    """Self-attention: the new keys and values join the past, and each row looks at its own past and itself."""
    past = slots.past[layer]  # (2, R, T, H, K)
    rows, capacity, heads, width = past.shape[1:]
    row, time = torch.arange(rows, device=qkv.device), torch.arange(capacity, device=qkv.device)
    position = _position_of_rows(slots)
    q, k, v = (qkv + bias).view(rows, 3, heads, width).unbind(1)
    if turns is not None:
        q, k = (_turned(x, turns[:, position]) for x in (q, k))
    past[0, row, position], past[1, row, position] = k, v
    earlier = time < position[:, None]
    origin = torch.where(earlier, slots.rows[position % 2, row], row[:, None])  # (R, T)
    keys, values = past[:, origin, time]
    return _attention(q[:, None], keys, values, earlier | (time == position[:, None])).flatten(1)


def cross_attention(
    queries: Float[Tensor, "R D"], bias: Float[Tensor, "D"], slots: Slots, layer: int
) -> Float[Tensor, "R D"]:
    """Attention to the source: all hypotheses of a sentence to the one that they translate."""
    keys, values = slots.memory[layer]  # (B, S, H, K) each
    q = (queries + bias).view(slots.shape.slots, slots.shape.width, *keys.shape[2:])
    real = torch.arange(keys.shape[1], device=keys.device) < slots.lengths[:, None]
    return _attention(q, keys, values, real).flatten(0, 1).flatten(1)


def beam_step(logits: Float[Tensor, "R V"], bias: Float[Tensor, "V"] | None, slots: Slots, special: Special) -> None:
    """A step of beam search, of all sentences that are not over: `decoding.search` says what one is."""
    going = (slots.over == 0).nonzero()[:, 0]
    position, width = slots.positions[going].long(), slots.shape.width
    scored = logits if bias is None else logits + bias
    log_probs = scored.view(-1, width, scored.shape[-1])[going].float().log_softmax(-1)
    allowed = _allowed(log_probs, position, slots, slots.longest[going], special)
    totals = (slots.totals[going][..., None] + allowed).flatten(1)
    totals = totals.masked_fill(totals.isnan(), -torch.inf)
    size, time = log_probs.shape[-1], position[:, None]

    best = totals.sort(dim=-1, descending=True, stable=True)
    ending = best.values[:, :width].masked_fill(best.indices[:, :width] % size != special.eos_id, -torch.inf)
    ended = [getattr(slots, name)[going] for name in ("scores", "log_probs", "order", "lasts", "truncated")]
    ranks, parents = torch.arange(width, device=going.device), best.indices[:, :width] // size
    never = torch.tensor([special.pad_id, special.bos_id], device=going.device)
    wants_more = log_probs.index_fill(-1, never, -torch.inf).argmax(-1) != special.eos_id
    cut_off = (wants_more & (position >= slots.longest[going])[:, None]).int().gather(1, parents)
    new = (ending / slots.penalties[time + 1], ending, time * width + ranks, parents, cut_off)
    both = [torch.cat(pair, 1) for pair in zip(ended, new, strict=True)]
    kept = both[0].sort(dim=-1, descending=True, stable=True).indices[:, :width]
    slots.scores[going], slots.log_probs[going] = (each.gather(1, kept) for each in both[:2])
    slots.order[going], slots.lasts[going], slots.truncated[going] = (each.gather(1, kept).int() for each in both[2:])

    ends = torch.arange(totals.shape[1], device=going.device) % size == special.eos_id
    live = totals.masked_fill(ends, -torch.inf).sort(dim=-1, descending=True, stable=True)
    slots.totals[going] = live.values[:, :width]
    words, parents = live.indices[:, :width] % size, live.indices[:, :width] // size
    slots.ids[going] = words
    slots.tokens[going, position], slots.parents[going, position] = words.int(), parents.int()
    _follow(parents, position, going, slots)

    worst, likeliest = slots.scores[going].amin(1), live.values[:, 0]
    furthest = torch.maximum(slots.penalties[slots.longest[going] + 1], slots.penalties[position + 2])
    enough = worst > -torch.inf if int(slots.rules[1]) else likeliest / furthest <= worst
    over = (enough | (likeliest == -torch.inf)).int()
    slots.over[going], slots.positions[going] = over, (position + 1 - over).int()


def _allowed(
    log_probs: Float[Tensor, "B W V"],
    position: Int[Tensor, "B"],
    slots: Slots,
    longest: Int[Tensor, "B"],
    special: Special,
) -> Float[Tensor, "B W V"]:
    words = torch.arange(log_probs.shape[-1], device=position.device)
    ends = words == special.eos_id
    may_end, may_go_on = (position >= slots.rules[0])[:, None], (position < longest)[:, None]
    never = (words == special.pad_id) | (words == special.bos_id)
    allowed = torch.where(ends, may_end, may_go_on) & ~never
    return log_probs.masked_fill(~allowed[:, None], -torch.inf)


def _follow(parents: Int[Tensor, "B W"], position: Int[Tensor, "B"], going: Int[Tensor, "B"], slots: Slots) -> None:
    """Where each hypothesis was at every time: where the one was that it continues, and in its row."""
    width, capacity = slots.shape.width, slots.shape.target
    origin = going[:, None] * width + parents
    own = going[:, None] * width + torch.arange(width, device=going.device)
    lines = slots.rows[(position % 2)[:, None], origin]  # (B, W, T)
    now = torch.arange(capacity, device=going.device) == position[:, None, None]
    slots.rows[((position + 1) % 2)[:, None], own] = torch.where(now, origin[..., None].int(), lines)


def _position_of_rows(slots: Slots) -> Int[Tensor, "R"]:
    return slots.positions.long().repeat_interleave(slots.shape.width)


def _normal(x: Float[Tensor, "R D"], norm: Norm) -> Float[Tensor, "R D"]:
    return functional.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)


def _turned(x: Float[Tensor, "R H K"], turns: Float[Tensor, "2 R half"]) -> Float[Tensor, "R H K"]:
    cos, sin = turns[:, :, None].to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def _attention(q: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """Of (N, Q, H, K) to (N, S, H, K), those that are seen, (N, S)."""
    scores = torch.einsum("nqhk,nshk->nhqs", q, keys) / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(~seen[:, None, None], -torch.inf).softmax(-1)
    return torch.einsum("nhqs,nshk->nqhk", weights, values)


REFERENCE = StepOps(embed, add_residual_norm, self_attention, cross_attention, beam_step, fused_attention)
