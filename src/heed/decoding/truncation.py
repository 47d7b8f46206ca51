"""Which hypotheses were ended by the length limit, and not by the model.

A search ends every hypothesis at its greatest length. One that is as long as that may have ended by itself all the
same: the model is asked what it would have written next, and if that is anything but the end, the text was cut off.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.base import Hypothesis, Start
from heed.config import SearchConfig
from heed.decoding.decode import walk
from heed.decoding.search import Rules


def mark_truncated(
    found: Sequence[Sequence[Hypothesis]],
    max_lengths: Sequence[int],
    config: SearchConfig,
    begin: Callable[[Sequence[int]], Start[Any]],
) -> list[list[Hypothesis]]:
    """The same hypotheses, those that the limit ended marked. begin: where a search for the numbered sentences starts.

    Nothing is computed unless a hypothesis is as long as may be.
    """
    marked = [list(hypotheses) for hypotheses in found]
    at_limit = [
        (number, rank)
        for number, hypotheses in enumerate(found)
        for rank, one in enumerate(hypotheses)
        if len(one.ids) == max_lengths[number]
    ]
    if at_limit:
        start = begin([number for number, _ in at_limit])
        ends = _ends_there(start, [found[number][rank].ids for number, rank in at_limit], config)
        for (number, rank), end in zip(at_limit, ends, strict=True):
            marked[number][rank] = replace(found[number][rank], truncated=not end)
    return marked


def _ends_there(start: Start[Any], written: Sequence[Sequence[int]], config: SearchConfig) -> list[bool]:
    """Whether the most probable token after each sequence is its end."""
    lengths = torch.tensor([len(ids) for ids in written], device=start.first.device)
    ends = torch.zeros_like(lengths, dtype=torch.bool)

    def choose(allowed: Float[Tensor, "B V"], going: Int[Tensor, "B"], length: int) -> Int[Tensor, "B"]:
        best = start.ops.argmax(allowed)
        done = lengths[going] == length
        ends[going] |= done & (best == start.eos_id)
        return best.masked_fill(done, start.eos_id)

    rules = Rules.of(start, [len(ids) + 1 for ids in written], config.model_copy(update={"min_length": 0}), written)
    for _ in walk(start, rules, choose):
        pass
    return ends.tolist()
