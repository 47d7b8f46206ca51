"""Source ids to hypotheses: the search that the settings ask for, over any backend.

A backend that has a search of its own for these settings does all of it; else heed's searches go step by step.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.base import Backend, Hypothesis, Prefixes, Sources, Start, Watch
from heed.config import ModelConfig, SearchConfig
from heed.decoding.cancellation import watched
from heed.decoding.decode import greedy_search, sample, walk
from heed.decoding.search import Rules, beam_search


def batches_by_length(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """The indices of sentences, the longest first, in batches of at most `budget` tokens, padding included.

    A sentence that is longer than that goes alone.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batch and lengths[batch[0]] * (len(batch) + 1) > budget:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


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


_EXTRA = 50  # a translation is at most this much longer than its source, as in the paper


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
        watch: Watch | None = None,
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of each source, best first.

        numbers: of the sources, among all that are translated at this time; sampling and `watch` go by them. watch:
        who looks at the search before each step; another system's search cannot be watched.
        """

        def begin(chosen: Sequence[int]) -> Start[Any]:
            start = self.backend.start([sources[index] for index in chosen])
            return start if watch is None else watched(start, [numbers[index] for index in chosen], watch)

        longest = greatest_lengths(self.backend.configs, sources, config)
        if prefixes is not None:
            longest = [max(length, len(prefix)) for length, prefix in zip(longest, prefixes, strict=True)]
        by_index = None if watch is None else Watch(lambda index: watch.gone(numbers[index]), watch.before_step)
        hypotheses = self.backend.search(sources, longest, config, prefixes, by_index)
        if hypotheses is not None and not self.backend.can_step:
            return hypotheses
        if hypotheses is None:
            hypotheses = find(begin(range(len(sources))), longest, config, numbers, prefixes)
        return mark_truncated(hypotheses, longest, config, begin)


def find(
    start: Start[Any], longest: Sequence[int], config: SearchConfig, numbers: Sequence[int], prefixes: Prefixes
) -> list[list[Hypothesis]]:
    """The best hypotheses of each sentence by sampling, greedy or beam search, as the settings say."""
    if config.sample:
        return sample(start, longest, config, numbers, prefixes)
    if config.beam == 1:
        return [[hypothesis] for hypothesis in greedy_search(start, longest, config, prefixes)]
    return beam_search(start, longest, config, prefixes)


def greatest_lengths(configs: Sequence[ModelConfig], sources: Sources, config: SearchConfig) -> list[int]:
    """The most tokens each translation may have: by default those of its source and 50 more.

    Never fewer than `min_length`, and never more than a model with learned positions has positions for, less the one
    that its first token takes.
    """
    positions = [model.max_length - 1 for model in configs if model.positions == "learned"]
    wanted = [config.max_length or max(len(ids) + _EXTRA, config.min_length) for ids in sources]
    return [min(length, *positions) if positions else length for length in wanted]
