"""The stepwise searches over a backend's step function: sampling, greedy and beam search, and their cancellation.

A cancelled sentence is forced to end: every token but eos gets log-probability -inf, so the search drops the sentence
as it drops any finished one, and its rows are free.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.base import Start, State
from heed.backends.protocol import Hypothesis, Prefixes, SearchMonitor
from heed.decoding.decode import greedy_search, sample
from heed.decoding.search import beam_search
from heed.search_config import SearchConfig


@dataclass(frozen=True)
class MonitoredState:
    """A search state that knows the ids of its sentences."""

    state: State
    sentence_ids: tuple[int, ...]  # of the unfinished sentences
    steps: int = 0

    def select(self, rows: Int[Tensor, "B W"], sentences: Int[Tensor, "B"] | None = None) -> "MonitoredState":
        kept = range(len(self.sentence_ids)) if sentences is None else sentences.tolist()
        sentence_ids = tuple(self.sentence_ids[index] for index in kept)
        return replace(self, state=self.state.select(rows, sentences), sentence_ids=sentence_ids)


def monitored(start: Start[Any], sentence_ids: Sequence[int], monitor: SearchMonitor) -> Start[MonitoredState]:
    """The same start, with `monitor` called before each step, and cancelled sentences ended."""

    def step(ids: Int[Tensor, "R"], before: MonitoredState) -> tuple[Float[Tensor, "R V"], MonitoredState]:
        monitor.before_step()
        log_probs, state = start.step(ids, before.state)
        cancelled = [index for index, sentence in enumerate(before.sentence_ids) if monitor.is_cancelled(sentence)]
        if cancelled and before.steps >= monitor.cancel_after:
            by_sentence = log_probs.unflatten(0, (len(before.sentence_ids), -1)).clone()  # (B, W, V)
            by_sentence[cancelled] = -torch.inf
            by_sentence[cancelled, :, start.eos_id] = 0.0
            log_probs = by_sentence.flatten(0, 1)
        return log_probs, replace(before, state=state, steps=before.steps + 1)

    return Start(step, MonitoredState(start.state, tuple(sentence_ids)), start.first, start.eos_id, start.ops)


def run_search(
    start: Start[Any],
    max_lengths: Sequence[int],
    config: SearchConfig,
    sentence_ids: Sequence[int],
    prefixes: Prefixes,
) -> list[list[Hypothesis]]:
    """The best hypotheses of each sentence by sampling, greedy or beam search, as `config` says."""
    if config.sample:
        return sample(start, max_lengths, config, sentence_ids, prefixes)
    if config.beam == 1:
        return [[hypothesis] for hypothesis in greedy_search(start, max_lengths, config, prefixes)]
    return beam_search(start, max_lengths, config, prefixes)
