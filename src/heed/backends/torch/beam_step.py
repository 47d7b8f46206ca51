"""A beam step with torch operators, on any device: which continuations of a beam's hypotheses go on, and which end.

Enters: log-probabilities of the hypotheses so far and of the next tokens. Leaves: the best `Continuations`.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.torch.topk import topk


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
