"""A sentence whose reader has gone leaves its batch at the next step.

Enters: where a search starts, and how to ask whether a sentence is still wanted. Leaves: a start from which the search
finds the same for all sentences that are wanted to the end. A sentence that is not wanted is made to end: every word
but the end becomes impossible, so the search drops it as it drops any sentence that is done, and its rows are free.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.base import Start, State, Watch


@dataclass(frozen=True)
class Watched:
    """A search's state that knows which sentences it is about."""

    state: State
    numbers: tuple[int, ...]  # of the sentences that are left
    steps: int = 0

    def select(self, rows: Int[Tensor, "B W"], sentences: Int[Tensor, "B"] | None = None) -> "Watched":
        """The hypotheses a search goes on with."""
        kept = range(len(self.numbers)) if sentences is None else sentences.tolist()
        return replace(
            self, state=self.state.select(rows, sentences), numbers=tuple(self.numbers[place] for place in kept)
        )


def watched(start: Start[Any], numbers: Sequence[int], watch: Watch) -> Start[Watched]:
    """The same start, looked at before each step. numbers: of the sentences."""

    def step(ids: Int[Tensor, "R"], now: Watched) -> tuple[Float[Tensor, "R V"], Watched]:
        watch.before_step()
        log_probs, state = start.step(ids, now.state)
        leaving = [place for place, number in enumerate(now.numbers) if watch.gone(number)]
        if leaving and now.steps >= watch.free_after:
            each = log_probs.unflatten(0, (len(now.numbers), -1)).clone()  # (B, W, V)
            each[leaving] = -torch.inf
            each[leaving, :, start.eos_id] = 0.0
            log_probs = each.flatten(0, 1)
        return log_probs, replace(now, state=state, steps=now.steps + 1)

    return Start(step, Watched(start.state, tuple(numbers)), start.first, start.eos_id, start.ops)
