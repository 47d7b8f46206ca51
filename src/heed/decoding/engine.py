"""What finds translations: source ids to hypotheses.

A translator needs no more than this of whatever does the arithmetic. `Stepwise` is heed's own search over anything that
steps, our models or another system's; an engine that brings its own search is a class of its own, elsewhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from heed.config import SearchConfig
from heed.decoding.cancellation import Watch, watched
from heed.decoding.decode import greedy_search, sample
from heed.decoding.search import Hypothesis, Prefixes, Start, beam_search
from heed.decoding.steps import Configured, greatest_lengths
from heed.decoding.truncation import mark_truncated


@runtime_checkable
class Engine(Protocol):
    """Source ids to hypotheses."""

    def search(
        self,
        sources: Sequence[Sequence[int]],
        config: SearchConfig,
        numbers: Sequence[int],
        prefixes: Prefixes = None,
        watch: Watch | None = None,
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of each source, best first.

        numbers: of the sources, among all that are translated at this time; sampling and `watch` go by them. watch:
        who looks at the search before each step; an engine with a search of its own cannot be watched.
        """


@dataclass(frozen=True)
class Stepwise:
    """Our own searches, over whatever begins."""

    begin: Callable[[Sequence[Sequence[int]]], Start[Any]]
    models: Sequence[Configured]  # those that begin: what they are, for the lengths they allow

    def search(
        self,
        sources: Sequence[Sequence[int]],
        config: SearchConfig,
        numbers: Sequence[int],
        prefixes: Prefixes = None,
        watch: Watch | None = None,
    ) -> list[list[Hypothesis]]:
        """By the search that the settings ask for."""

        def begin(chosen: Sequence[int]) -> Start[Any]:
            start = self.begin([sources[place] for place in chosen])
            return start if watch is None else watched(start, [numbers[place] for place in chosen], watch)

        start = begin(range(len(sources)))
        longest = greatest_lengths(self.models, sources, config)
        if prefixes is not None:
            longest = [max(length, len(prefix)) for length, prefix in zip(longest, prefixes, strict=True)]
        if config.sample:
            found = sample(start, longest, config, numbers, prefixes)
        elif config.beam == 1:
            found = [[one] for one in greedy_search(start, longest, config, prefixes)]
        else:
            found = beam_search(start, longest, config, prefixes)
        return mark_truncated(found, longest, config, begin)
