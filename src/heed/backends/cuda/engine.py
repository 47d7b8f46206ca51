"""Whole-search engine for a GPU: every decoder step, beam step included, is one CUDA graph launch.

A step of a small model is some seventy small kernels, which take longer to launch than to run; so the step is captured
once and replayed. A graph is specific to the number of slots and the beam, so graphs of a few shapes are cached. Not
supported: sampling, prefixes, `no_repeat_ngram`, wide beams, models in training mode or with hooks.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from heed.backends.cuda.decoder import StaticDecoder
from heed.backends.cuda.graph import capture
from heed.backends.cuda.search import StaticStep, static_search
from heed.backends.cuda.slots import SlotShape, fit_memory
from heed.backends.cuda.step_ops import StepOps
from heed.backends.protocol import Hypothesis, Prefixes, SearchMonitor, Sources
from heed.backends.weight_versions import weights_fingerprint
from heed.model.transformer import Transformer
from heed.search_config import SearchConfig

_MAX_ROWS = 2048  # hypotheses at a time: more gain nothing on an H200
_MAX_BEAM = 16
_CACHED_SHAPES = 8
_MIN_LENGTH = 32  # tokens that a slot has room for
_MEMORY_SHARE = 16  # keys and values of one shape take at most one part in so many of the GPU's memory


class StaticEngine:
    """Searches in static buffers; on a GPU the steps are captured."""

    tokens_per_batch = 262_144  # source tokens times beam of one search

    def __init__(self, model: Transformer, dtype: torch.dtype, ops: StepOps) -> None:
        self._model, self._dtype, self._ops = model, dtype, ops
        self._device = model.device
        self._pool: Any = None  # the memory that all captured steps share
        self._decoder: StaticDecoder | None = None
        self._weights: list[int] = []
        self._steps: OrderedDict[tuple[int, int, int], StaticStep] = OrderedDict()
        self._lock, self._depth = threading.RLock(), 0  # before_step of a monitor may start a nested search

    def search(
        self,
        sources: Sources,
        max_lengths: Sequence[int],
        config: SearchConfig,
        prefixes: Prefixes = None,
        monitor: SearchMonitor | None = None,
    ) -> list[list[Hypothesis]] | None:
        """The best hypotheses of each source, best first; None: these settings need a stepwise search."""
        if (
            not sources
            or prefixes is not None
            or config.sample
            or config.no_repeat_ngram is not None
            or config.beam > _MAX_BEAM
        ):
            return None
        with self._lock:
            self._depth += 1
            try:
                decoder = self._current_decoder()
                step = self._static_step(decoder, sources, max_lengths, config)
                hypotheses = static_search(decoder, step, sources, max_lengths, config, monitor)
            finally:
                self._depth -= 1
        return hypotheses if all(hypotheses) else None  # the stepwise search reports why a sentence has none

    def _current_decoder(self) -> StaticDecoder:
        """The decoder, rebuilt when the model's weights have changed."""
        weights = weights_fingerprint(self._model)
        if self._decoder is None or weights != self._weights:
            self._steps.clear()
            self._decoder, self._weights = StaticDecoder(self._model, self._dtype, self._ops), weights
        return self._decoder

    def _static_step(
        self, decoder: StaticDecoder, sources: Sequence[Sequence[int]], max_lengths: Sequence[int], config: SearchConfig
    ) -> StaticStep:
        """Buffers and step with enough capacity: cached ones, or larger ones that replace them."""
        source, target = max(map(len, sources)) + 1, max(max_lengths) + 1
        slots = min(_next_power_of_2(len(sources)), max(1, _MAX_ROWS // config.beam))
        if config.tokens_per_batch is not None:
            slots = min(slots, max(1, config.tokens_per_batch // (source * config.beam)))
        shape = SlotShape(
            slots, config.beam, max(_MIN_LENGTH, _next_power_of_2(source)), max(_MIN_LENGTH, _next_power_of_2(target))
        )
        if self._device.type == "cuda":
            memory = torch.cuda.get_device_properties(self._device).total_memory // _MEMORY_SHARE
            model = self._model.config
            shape = fit_memory(shape, model.decoder_layers, model.d_model, self._dtype, memory)
        key = (shape.slots, shape.beam, self._depth)
        step = self._steps.get(key)
        if step is None or step.slots.shape.source_length < source or step.slots.shape.target_length < target:
            if step is not None:
                old = self._steps.pop(key).slots.shape
                shape = SlotShape(
                    *key[:2], max(old.source_length, shape.source_length), max(old.target_length, shape.target_length)
                )
                del step
            step = self._steps[key] = self._new_step(decoder, shape)
        self._steps.move_to_end(key)
        while len(self._steps) > _CACHED_SHAPES:
            self._steps.popitem(last=False)
        return step

    def _new_step(self, decoder: StaticDecoder, shape: SlotShape) -> StaticStep:
        slots, embedding = decoder.slots(shape)
        step = partial(decoder.step, slots, embedding)
        if self._device.type != "cuda":
            return StaticStep(slots, step)
        if not self._steps:  # torch refuses to capture into a pool whose graphs are all gone
            self._pool = torch.cuda.graph_pool_handle()
        return StaticStep(slots, capture(step, self._device, self._pool))


def _next_power_of_2(number: int) -> int:
    return 1 << (number - 1).bit_length()
