"""Source ids to hypotheses: beam search, greedy search or sampling over any backend, and cancellation.

A backend may run the whole search itself; otherwise heed's searches run over its step function.

A cancelled sentence is forced to end: every token but eos gets log-probability -inf, so the search drops the sentence
as it drops any finished one, and its rows are free.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.base import Backend, Hypothesis, Prefixes, SearchMonitor, Sources, Start, State
from heed.config import ModelConfig
from heed.decoding.decode import greedy_search, sample
from heed.decoding.search import beam_search
from heed.search_config import MAX_OUTPUT_LENGTH, SearchConfig


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


class Engine:
    """Runs the search that the settings select: beam search, greedy search or sampling."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def search(
        self,
        sources: Sources,
        config: SearchConfig,
        sentence_ids: Sequence[int],
        prefixes: Prefixes = None,
        monitor: SearchMonitor | None = None,
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of each source, best first.

        sentence_ids: seed sampling, and name the sources to `monitor`. monitor: called before each step; the search of
        another system's engine ignores it.
        """
        max_lengths = max_output_lengths(self.backend.configs, sources, config)
        if prefixes is not None:
            max_lengths = [max(length, len(prefix)) for length, prefix in zip(max_lengths, prefixes, strict=True)]
        by_index = (
            None
            if monitor is None
            else SearchMonitor(lambda index: monitor.is_cancelled(sentence_ids[index]), monitor.before_step)
        )
        hypotheses = self.backend.search(sources, max_lengths, config, prefixes, by_index)
        if hypotheses is not None:
            return hypotheses
        start = self.backend.start(sources)
        if monitor is not None:
            start = monitored(start, sentence_ids, monitor)
        return run_search(start, max_lengths, config, sentence_ids, prefixes)


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


def max_output_lengths(configs: Sequence[ModelConfig], sources: Sources, config: SearchConfig) -> list[int]:
    """The maximum number of tokens of each translation: `max_length`, or what the length of its source allows.

    At least `min_length`, and at most one less than the positions of a model with learned positions: bos takes one.
    """
    positions = [model.max_length - 1 for model in configs if model.positions == "learned"]
    by_source = (math.ceil(config.max_length_ratio * len(ids)) + config.max_length_extra for ids in sources)
    lengths = [config.max_length or max(length, config.min_length, 1) for length in by_source]
    return [min(length, MAX_OUTPUT_LENGTH, *positions) for length in lengths]
