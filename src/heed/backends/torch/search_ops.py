"""Top-k, argmax and beam step with torch operators, on any device, with a deterministic order of ties.

Ties go to the lower id, on every device and in every batch, which torch guarantees for neither `topk` nor an unstable
`sort`. On a CPU torch's argmax and top-k scan a row element by element, while its maximum is vectorised; so a row is
split into blocks, the maximum of each is computed, and only the best blocks are searched.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

_BLOCK = 128  # elements per block
_MIN_BLOCKS = 4  # per result; with fewer blocks torch's own operators are faster


def topk(log_probs: Float[Tensor, "R V"], count: int) -> tuple[Float[Tensor, "R N"], Int[Tensor, "R N"]]:
    """The `count` most probable tokens of each row, or all: values and ids, best first.

    Ties go to the lower id. torch.topk guarantees no order, so the few rows with a tie across the cut-off are sorted as
    a whole. The order of -inf is unspecified, since such tokens are never chosen.
    """
    if count >= log_probs.shape[-1]:
        values, tokens = log_probs.sort(dim=-1, descending=True, stable=True)
        return values, tokens
    values, tokens = _top(log_probs, count + 1)
    tied = (values[:, -2] == values[:, -1]) & (values[:, -1] > -torch.inf)
    tokens = tokens[:, :count].sort(dim=-1).values
    if bool(tied.any()):
        whole = log_probs[tied].sort(dim=-1, descending=True, stable=True)
        tokens[tied] = whole.indices[:, :count].sort(dim=-1).values
    values, order = log_probs.gather(-1, tokens).sort(dim=-1, descending=True, stable=True)
    return values, tokens.gather(-1, order)


def _top(log_probs: Float[Tensor, "R V"], count: int) -> tuple[Float[Tensor, "R N"], Int[Tensor, "R N"]]:
    """torch.topk; on a CPU only over the blocks with the largest maxima, which contain the result."""
    blocks = log_probs.shape[1] // _BLOCK
    if log_probs.device.type != "cpu" or blocks < _MIN_BLOCKS * count:
        values, tokens = log_probs.topk(count)
        return values, tokens
    whole = log_probs[:, : blocks * _BLOCK].unflatten(1, (blocks, _BLOCK))
    best = whole.amax(-1).topk(count).indices  # (R, N)
    device = log_probs.device
    tokens = (best[..., None] * _BLOCK + torch.arange(_BLOCK, device=device)).flatten(1)
    rest = torch.arange(blocks * _BLOCK, log_probs.shape[1], device=device).expand(len(tokens), -1)
    tokens = torch.cat((tokens, rest), 1)
    values, positions = log_probs.gather(1, tokens).topk(count)
    return values, tokens.gather(1, positions)


def argmax(log_probs: Float[Tensor, "R V"]) -> Int[Tensor, "R"]:
    """The most probable token of each row; ties go to the lower id."""
    blocks, size = log_probs.shape[1] // _BLOCK, log_probs.shape[1]
    if log_probs.device.type != "cpu" or blocks < _MIN_BLOCKS:
        return log_probs.argmax(-1)
    maxima = log_probs[:, : blocks * _BLOCK].unflatten(1, (blocks, _BLOCK)).amax(-1)
    if size > blocks * _BLOCK:
        maxima = torch.cat((maxima, log_probs[:, blocks * _BLOCK :].amax(-1, keepdim=True)), 1)
    tokens = maxima.argmax(-1, keepdim=True) * _BLOCK + torch.arange(_BLOCK, device=log_probs.device)
    tokens = tokens.clamp_(max=size - 1)  # the last block may be shorter
    best = log_probs.gather(1, tokens).argmax(-1, keepdim=True)
    return tokens.gather(1, best)[:, 0]


class Continuations(NamedTuple):
    """W continuations of each sentence, best first: total log-probability, newest token, and the row they extend."""

    log_probs: Float[Tensor, "B W"]
    tokens: Int[Tensor, "B W"]
    rows: Int[Tensor, "B W"]


def beam_step(
    live: Float[Tensor, "B W"], log_probs: Float[Tensor, "R V"], eos_id: int
) -> tuple[Continuations, Continuations | None]:
    """The best W unfinished continuations of each sentence's hypotheses, and the finished ones among the best W of all.

    The latter are None if no sentence has any; else -inf where a sentence has fewer than W. Ties go to the lower
    hypothesis, then to the lower token. At most W + 1 continuations of a hypothesis can matter: W and the eos.
    """
    beam = live.shape[1]
    values, tokens = topk(log_probs, beam + 1)
    totals = (live[..., None] + values.unflatten(0, (-1, beam))).flatten(1)  # (B, W·N)
    tokens = tokens.view_as(totals)
    is_eos = tokens == eos_id
    unfinished = _best(totals.masked_fill(is_eos, -torch.inf), tokens, beam)
    if not bool((is_eos & (totals >= unfinished.log_probs[:, -1:])).any()):  # the case in most steps
        return unfinished, None
    best = _best(totals, tokens, beam)
    return unfinished, best._replace(log_probs=best.log_probs.masked_fill(best.tokens != eos_id, -torch.inf))


def _best(totals: Float[Tensor, "B WN"], tokens: Int[Tensor, "B WN"], beam: int) -> Continuations:
    order = totals.sort(dim=-1, descending=True, stable=True)
    best = order.indices[:, :beam]
    rows = best // (totals.shape[1] // beam) + beam * torch.arange(len(best), device=best.device)[:, None]
    return Continuations(order.values[:, :beam], tokens.gather(1, best), rows)
