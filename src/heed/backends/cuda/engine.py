"""A whole search on a GPU, each of whose steps is one CUDA graph launch.

A step of a small model is some seventy small kernels, which take longer to launch than to run; so a whole step, beam
step included, is captured once and replayed. What is captured depends on how many sentences and hypotheses there are,
so graphs of a few sizes are kept. It takes neither sampling, prefixes, `no_repeat_ngram` nor wide beams, nor a model in
training mode or with hooks.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

import torch

from heed.backends.base import Hypothesis, SearchMonitor, Sources
from heed.backends.cuda.decoder import StaticDecoder
from heed.backends.cuda.graph import capture
from heed.backends.cuda.search import Room, static_search
from heed.backends.cuda.slots import Shape, affordable
from heed.backends.cuda.step_ops import StepOps
from heed.config import SearchConfig
from heed.model.transformer import Transformer

_ROWS = 2048  # hypotheses at a time: more gain an H200 nothing
_WIDEST = 16  # hypotheses per sentence
_ROOMS = 8  # sizes that are kept
_LEAST = 32  # tokens that a slot has room for
_OF_MEMORY = 16  # keys and values of one size take at most one part in so many


class StaticEngine:
    """Searches in static buffers, by steps that are captured where the model is on a GPU."""

    tokens_per_batch = 262_144  # of sources, times the beam, given to one search

    def __init__(self, model: Transformer, dtype: torch.dtype, ops: StepOps) -> None:
        self._model, self._dtype, self._ops = model, dtype, ops
        self._device = model.vocabulary.embedding.weight.device
        self._pool = torch.cuda.graph_pool_handle() if self._device.type == "cuda" else None
        self._decoder: StaticDecoder | None = None
        self._weights: list[tuple[int, int]] = []
        self._rooms: OrderedDict[tuple[int, int, int], Room] = OrderedDict()
        self._at_work, self._depth = threading.RLock(), 0  # who watches a search may begin another one within it

    def search(
        self, sources: Sources, max_lengths: Sequence[int], config: SearchConfig, monitor: SearchMonitor | None = None
    ) -> list[list[Hypothesis]] | None:
        """The best hypotheses of each source, best first; None where these settings need a search step by step."""
        if not sources or config.sample or config.no_repeat_ngram is not None or config.beam > _WIDEST:
            return None
        with self._at_work:
            self._depth += 1
            try:
                decoder = self._current()
                room = self._room(decoder, sources, max_lengths, config)
                hypotheses = static_search(decoder, room, sources, max_lengths, config, monitor)
            finally:
                self._depth -= 1
        return hypotheses if all(hypotheses) else None  # stepping will say why a sentence has none

    def _current(self) -> StaticDecoder:
        """The decoder with the model's weights as they are now."""
        weights = [(weight.data_ptr(), weight._version) for weight in self._model.parameters()]
        if self._decoder is None or weights != self._weights:
            self._rooms.clear()
            self._decoder, self._weights = StaticDecoder(self._model, self._dtype, self._ops), weights
        return self._decoder

    def _room(
        self, decoder: StaticDecoder, sources: Sequence[Sequence[int]], longest: Sequence[int], config: SearchConfig
    ) -> Room:
        """Slots for these, with room for all their tokens: those that are there, or larger ones in their place."""
        source, target = max(map(len, sources)) + 1, max(longest) + 1
        slots = min(_power(len(sources)), max(1, _ROWS // config.beam))
        if config.tokens_per_batch is not None:
            slots = min(slots, max(1, config.tokens_per_batch // (source * config.beam)))
        shape = Shape(slots, config.beam, max(_LEAST, _power(source)), max(_LEAST, _power(target)))
        if self._device.type == "cuda":
            memory = torch.cuda.get_device_properties(self._device).total_memory // _OF_MEMORY
            model = self._model.config
            shape = affordable(shape, model.decoder_layers, model.d_model, self._dtype, memory)
        key = (shape.slots, shape.width, self._depth)
        room = self._rooms.get(key)
        if room is None or room.slots.shape.source < source or room.slots.shape.target < target:
            if room is not None:
                old = self._rooms.pop(key).slots.shape
                shape = Shape(*key[:2], max(old.source, shape.source), max(old.target, shape.target))
                del room
            room = self._rooms[key] = self._new_room(decoder, shape)
        self._rooms.move_to_end(key)
        while len(self._rooms) > _ROOMS:
            self._rooms.popitem(last=False)
        return room

    def _new_room(self, decoder: StaticDecoder, shape: Shape) -> Room:
        slots, words = decoder.slots(shape)
        step = partial(decoder.step, slots, words)
        return Room(slots, step if self._device.type != "cuda" else capture(step, self._device, self._pool))


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()
