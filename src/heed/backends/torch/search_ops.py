"""The inner operations of a search with torch operators, on any device: top-k, argmax, and a beam step.

Of equals, the lower id comes first, on every device and in every batch, which torch promises for neither `topk` nor a
`sort` that is not stable. On a CPU torch goes through a row number by number to find the index of the largest, and
sixteen at a time to find the largest alone; so a row is cut into runs, the maximum of each is found, and only the best
runs are searched.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

_RUN = 128  # numbers whose maximum is found at once
_FEW = 4  # runs for each one that is wanted: with fewer, torch's own way is quicker


def topk(log_probs: Float[Tensor, "R V"], count: int) -> tuple[Float[Tensor, "R N"], Int[Tensor, "R N"]]:
    """The `count` likeliest tokens of each row, or all there are: values and ids, best first.

    Of equals, the lower id comes first, on every device and in every batch. torch.topk promises no order, so rows with
    equals on both sides of the cut are sorted as a whole; they are few. What is -inf is never said: it has no order.
    """
    if count >= log_probs.shape[-1]:
        values, tokens = log_probs.sort(dim=-1, descending=True, stable=True)
        return values, tokens
    values, tokens = _top(log_probs, count + 1)
    cut = (values[:, -2] == values[:, -1]) & (values[:, -1] > -torch.inf)
    tokens = tokens[:, :count].sort(dim=-1).values
    if bool(cut.any()):
        whole = log_probs[cut].sort(dim=-1, descending=True, stable=True)
        tokens[cut] = whole.indices[:, :count].sort(dim=-1).values
    values, order = log_probs.gather(-1, tokens).sort(dim=-1, descending=True, stable=True)
    return values, tokens.gather(-1, order)


def _top(log_probs: Float[Tensor, "R V"], count: int) -> tuple[Float[Tensor, "R N"], Int[Tensor, "R N"]]:
    """torch.topk, on a CPU in a fraction of the time: the best of V numbers are in the runs with the best maxima."""
    runs = log_probs.shape[1] // _RUN
    if log_probs.device.type != "cpu" or runs < _FEW * count:
        values, tokens = log_probs.topk(count)
        return values, tokens
    whole = log_probs[:, : runs * _RUN].unflatten(1, (runs, _RUN))
    best = whole.amax(-1).topk(count).indices  # (R, N)
    device = log_probs.device
    tokens = (best[..., None] * _RUN + torch.arange(_RUN, device=device)).flatten(1)
    rest = torch.arange(runs * _RUN, log_probs.shape[1], device=device).expand(len(tokens), -1)
    tokens = torch.cat((tokens, rest), 1)
    values, places = log_probs.gather(1, tokens).topk(count)
    return values, tokens.gather(1, places)


def argmax(log_probs: Float[Tensor, "R V"]) -> Int[Tensor, "R"]:
    """The likeliest token of each row; of equals the first, as `argmax` promises."""
    runs, size = log_probs.shape[1] // _RUN, log_probs.shape[1]
    if log_probs.device.type != "cpu" or runs < _FEW:
        return log_probs.argmax(-1)
    maxima = log_probs[:, : runs * _RUN].unflatten(1, (runs, _RUN)).amax(-1)
    if size > runs * _RUN:
        maxima = torch.cat((maxima, log_probs[:, runs * _RUN :].amax(-1, keepdim=True)), 1)
    tokens = maxima.argmax(-1, keepdim=True) * _RUN + torch.arange(_RUN, device=log_probs.device)
    tokens = tokens.clamp_(max=size - 1)  # the last run may be shorter
    best = log_probs.gather(1, tokens).argmax(-1, keepdim=True)
    return tokens.gather(1, best)[:, 0]


class Continuations(NamedTuple):
    """W continuations of each sentence, best first: total log-probability, newest token, and which row they extend."""

    log_probs: Float[Tensor, "B W"]
    tokens: Int[Tensor, "B W"]
    rows: Int[Tensor, "B W"]


def beam_step(
    live: Float[Tensor, "B W"], log_probs: Float[Tensor, "R V"], eos_id: int
) -> tuple[Continuations, Continuations | None]:
    """Of the continuations of each sentence's W hypotheses the best W that go on, and the ends among the best W of all.

    The latter are None if there are none in any sentence; else -inf where a sentence has fewer than W of them. Of
    equals the continuation of the lower hypothesis comes first, then the lower token. No more than W + 1 continuations
    of a hypothesis can matter: W that live on and its end.
    """
    width = live.shape[1]
    values, tokens = topk(log_probs, width + 1)
    totals = (live[..., None] + values.unflatten(0, (-1, width))).flatten(1)  # (B, W·N)
    tokens = tokens.view_as(totals)
    ends = tokens == eos_id
    going_on = _best(totals.masked_fill(ends, -torch.inf), tokens, width)
    if not bool((ends & (totals >= going_on.log_probs[:, -1:])).any()):  # most steps: no end is among the best
        return going_on, None
    best = _best(totals, tokens, width)
    return going_on, best._replace(log_probs=best.log_probs.masked_fill(best.tokens != eos_id, -torch.inf))


def _best(totals: Float[Tensor, "B WN"], tokens: Int[Tensor, "B WN"], width: int) -> Continuations:
    order = totals.sort(dim=-1, descending=True, stable=True)
    places = order.indices[:, :width]
    rows = places // (totals.shape[1] // width) + width * torch.arange(len(places), device=places.device)[:, None]
    return Continuations(order.values[:, :width], tokens.gather(1, places), rows)
