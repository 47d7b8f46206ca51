"""Source ids to hypotheses: beam search, greedy search or sampling over any backend, and cancellation.

A backend may run the whole search itself; otherwise heed's searches run over its step function (stepwise.py), with
torch.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from heed.backends.protocol import Backend, Hypothesis, Prefixes, SearchMonitor, Sources
from heed.config import ModelConfig
from heed.model.torch_state import require_torch
from heed.search_config import MAX_OUTPUT_LENGTH, SearchConfig


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
            else replace(monitor, is_cancelled=lambda index: monitor.is_cancelled(sentence_ids[index]))
        )
        hypotheses = self.backend.search(sources, max_lengths, config, prefixes, by_index)
        if hypotheses is not None:
            return hypotheses
        require_torch()
        from heed.decoding.stepwise import monitored, run_search  # noqa: PLC0415 - torch takes seconds to import

        start = self.backend.start(sources)
        if monitor is not None:
            start = monitored(start, sentence_ids, monitor)
        return run_search(start, max_lengths, config, sentence_ids, prefixes)


def max_output_lengths(configs: Sequence[ModelConfig], sources: Sources, config: SearchConfig) -> list[int]:
    """The maximum number of tokens of each translation: `max_length`, or what the length of its source allows.

    At least `min_length`, and at most one less than the positions of a model with learned positions: bos takes one.
    """
    positions = [model.max_length - 1 for model in configs if model.positions == "learned"]
    by_source = (math.ceil(config.max_length_ratio * len(ids)) + config.max_length_extra for ids in sources)
    lengths = [config.max_length or max(length, config.min_length, 1) for length in by_source]
    return [min(length, MAX_OUTPUT_LENGTH, *positions) for length in lengths]
