"""Source ids to hypotheses: the search that the settings ask for, over any backend.

A backend that has a search of its own for these settings does all of it; else heed's searches go step by step.

A sentence whose reader has gone is made to end: every token but the eos becomes impossible, so the search drops it as
it drops any sentence that is done, and its rows are free.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.base import Backend, Hypothesis, Prefixes, SearchMonitor, Sources, Start, State
from heed.config import ModelConfig, SearchConfig
from heed.decoding.decode import greedy_search, sample
from heed.decoding.search import beam_search

MAX_EXTRA_TOKENS = 50  # a translation is at most this much longer than its source, as in the paper


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


def watched(start: Start[Any], numbers: Sequence[int], monitor: SearchMonitor) -> Start[Watched]:
    """The same start, looked at before each step. numbers: of the sentences."""

    def step(ids: Int[Tensor, "R"], now: Watched) -> tuple[Float[Tensor, "R V"], Watched]:
        monitor.before_step()
        log_probs, state = start.step(ids, now.state)
        leaving = [place for place, number in enumerate(now.numbers) if monitor.is_cancelled(number)]
        if leaving and now.steps >= monitor.cancel_after:
            each = log_probs.unflatten(0, (len(now.numbers), -1)).clone()  # (B, W, V)
            each[leaving] = -torch.inf
            each[leaving, :, start.eos_id] = 0.0
            log_probs = each.flatten(0, 1)
        return log_probs, replace(now, state=state, steps=now.steps + 1)

    return Start(step, Watched(start.state, tuple(numbers)), start.first, start.eos_id, start.ops)


class Engine:
    """Searches over one backend."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def search(
        self,
        sources: Sources,
        config: SearchConfig,
        numbers: Sequence[int],
        prefixes: Prefixes = None,
        monitor: SearchMonitor | None = None,
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of each source, best first.

        numbers: of the sources, among all that are translated at this time; sampling and `monitor` go by them. monitor:
        who looks at the search before each step; another system's search cannot be watched.
        """
        longest = max_output_lengths(self.backend.configs, sources, config)
        if prefixes is not None:
            longest = [max(length, len(prefix)) for length, prefix in zip(longest, prefixes, strict=True)]
        by_index = (
            None
            if monitor is None
            else SearchMonitor(lambda index: monitor.is_cancelled(numbers[index]), monitor.before_step)
        )
        hypotheses = self.backend.search(sources, longest, config, prefixes, by_index)
        if hypotheses is not None:
            return hypotheses
        start = self.backend.start(sources)
        if monitor is not None:
            start = watched(start, numbers, monitor)
        return find(start, longest, config, numbers, prefixes)


def find(
    start: Start[Any], longest: Sequence[int], config: SearchConfig, numbers: Sequence[int], prefixes: Prefixes
) -> list[list[Hypothesis]]:
    """The best hypotheses of each sentence by sampling, greedy or beam search, as the settings say."""
    if config.sample:
        return sample(start, longest, config, numbers, prefixes)
    if config.beam == 1:
        return [[hypothesis] for hypothesis in greedy_search(start, longest, config, prefixes)]
    return beam_search(start, longest, config, prefixes)


def max_output_lengths(configs: Sequence[ModelConfig], sources: Sources, config: SearchConfig) -> list[int]:
    """The most tokens each translation may have: by default those of its source and 50 more.

    Never fewer than `min_length`, and never more than a model with learned positions has positions for, less the one
    that its first token takes.
    """
    positions = [model.max_length - 1 for model in configs if model.positions == "learned"]
    wanted = [config.max_length or max(len(ids) + MAX_EXTRA_TOKENS, config.min_length) for ids in sources]
    return [min(length, *positions) if positions else length for length in wanted]
