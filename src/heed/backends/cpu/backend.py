"""Compiled C as a backend of its own: one model's whole search on a CPU, without torch.

Enters: a model's settings and its weights as the model folder stores them. Leaves: hypotheses. What the compiled search
does not run or refuses (sampling, ids outside the vocabulary) is searched step by step by the torch model, which is
built when it is first needed.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from heed.backends.cpu.layers import LayerStack, Weights, embeddings
from heed.backends.cpu.search import NativeSearch
from heed.backends.protocol import Backend, BackendChoice, Hypothesis, Prefixes, SearchMonitor, Sources
from heed.config import ModelConfig
from heed.search_config import SearchConfig

if TYPE_CHECKING:
    import heed.backends.base


class NativeBackend:
    """A model in compiled C. stepwise: makes the backend of the torch model, which has the same weights."""

    can_step = True

    def __init__(
        self,
        config: ModelConfig,
        search: NativeSearch,
        choice: BackendChoice,
        tokens: int,
        stepwise: Callable[[], Backend],
    ) -> None:
        self.configs, self.choice, self.tokens_per_batch = [config], choice, tokens
        self._search, self._stepwise = search, stepwise

    def start(self, sources: Sources) -> "heed.backends.base.Start[Any]":
        return self._stepwise().start(sources)

    def search(
        self,
        sources: Sources,
        max_lengths: Sequence[int],
        config: SearchConfig,
        prefixes: Prefixes,
        monitor: SearchMonitor | None,
    ) -> list[list[Hypothesis]] | None:
        """Search in one call of compiled C; None: a stepwise search runs, or says what is wrong with the input."""
        return self._search(sources, max_lengths, config, prefixes, monitor)


def native_search(config: ModelConfig, weights: Weights, *, int8: bool) -> NativeSearch:
    """The whole search over a model, from a copy of its weights in the order in which C reads them."""
    by_side = embeddings(weights)
    encoder = LayerStack(config, weights, "encoder", by_side["encoder"], int8=int8)
    return NativeSearch(config, (encoder, LayerStack(config, weights, "decoder", by_side["decoder"], int8=int8)))
