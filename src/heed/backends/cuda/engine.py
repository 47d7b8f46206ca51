"""The engine for a GPU: a search whose every step is one request to it.

A step of a small model is some seventy small kernels, which take longer to be asked for than to run; so a whole step,
search included, is captured once and then repeated. What is captured depends on how many sentences and hypotheses there
are, so a few sizes are kept. Settings that cannot be had this way go to another engine: sampling, prefixes,
`no_repeat_ngram`, wide beams, and a model that learns or that somebody hangs hooks on.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch

from heed.backends.cuda.decoder import StaticDecoder
from heed.backends.cuda.graph import capture, missing_for_capture
from heed.backends.cuda.search import Room, static_search
from heed.backends.cuda.slots import Shape, affordable
from heed.backends.cuda.step_ops import PLAIN, Parts
from heed.backends.torch.decoder import steps_as_made
from heed.config import SearchConfig
from heed.decoding.cancellation import Watch
from heed.decoding.engine import Engine, Stepwise
from heed.decoding.search import Hypothesis, Prefixes
from heed.decoding.steps import begin, greatest_lengths
from heed.decoding.truncation import mark_truncated
from heed.errors import InputError
from heed.model.transformer import Transformer

Precision = Literal["auto", "bfloat16", "float32"]

_ROWS = 2048  # hypotheses at a time: more gain an H200 nothing
_WIDEST = 16  # hypotheses a sentence
_ROOMS = 8  # sizes that are kept
_LEAST = 32  # tokens that a slot has room for
_WITH_BFLOAT16 = 8  # the first generation of GPUs
_OF_MEMORY = 16  # keys and values of one size take at most one part in so many


class CapturedEngine:
    """Searches in slots, by steps that are captured where the model is on a GPU; `otherwise` does what it cannot."""

    def __init__(self, model: Transformer, dtype: torch.dtype, otherwise: Engine, parts: Parts = PLAIN) -> None:
        self._model, self._dtype, self._otherwise, self._parts = model, dtype, otherwise, parts
        self._device = model.vocabulary.embedding.weight.device
        self._pool = torch.cuda.graph_pool_handle() if self._device.type == "cuda" else None
        self._decoder: StaticDecoder | None = None
        self._weights: list[tuple[int, int]] = []
        self._rooms: OrderedDict[tuple[int, int, int], Room] = OrderedDict()
        self._at_work, self._depth = threading.RLock(), 0  # who watches a search may begin another one within it

    def search(
        self,
        sources: Sequence[Sequence[int]],
        config: SearchConfig,
        numbers: Sequence[int],
        prefixes: Prefixes = None,
        watch: Watch | None = None,
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of each source, best first."""
        if not sources or prefixes is not None or not _can_search(config) or not steps_as_made(self._model):
            return self._otherwise.search(sources, config, numbers, prefixes, watch)
        longest = greatest_lengths([self._model], sources, config)
        own = None if watch is None else Watch(lambda place: watch.gone(numbers[place]), watch.before_step)
        with self._at_work:
            self._depth += 1
            try:
                decoder = self._current()
                room = self._room(decoder, sources, longest, config)
                found = static_search(decoder, room, sources, longest, config, own)
            finally:
                self._depth -= 1
        if not all(found):  # then the other will say why
            return self._otherwise.search(sources, config, numbers, prefixes, watch)
        return mark_truncated(
            found, longest, config, lambda chosen: begin([self._model], [sources[place] for place in chosen])
        )

    def _current(self) -> StaticDecoder:
        """The decoder with the model's weights as they are now."""
        weights = [(weight.data_ptr(), weight._version) for weight in self._model.parameters()]
        if self._decoder is None or weights != self._weights:
            self._rooms.clear()
            self._decoder, self._weights = StaticDecoder(self._model, self._dtype, self._parts), weights
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


def quickest_engine(models: Sequence[Transformer], precision: Precision = "auto") -> Engine:
    """This engine for one model on a GPU that has what it needs, else our plain searches.

    auto: bfloat16 where the GPU multiplies it, else float32.
    """
    plain = Stepwise(partial(begin, models), models)
    on_gpu = len(models) == 1 and models[0].vocabulary.embedding.weight.is_cuda
    missing = missing_for_capture() if on_gpu else "that is for one model, on a GPU"
    if missing is not None or not steps_as_made(models[0]):
        if precision == "bfloat16":
            raise InputError(f"precision = 'bfloat16' cannot be had, use 'float32': {missing or 'nothing to search'}")
        return plain
    from heed.backends.cuda.triton_ops import TRITON  # noqa: PLC0415 - needs Triton, which not every machine has

    half = precision == "bfloat16" or (precision == "auto" and torch.cuda.get_device_capability()[0] >= _WITH_BFLOAT16)
    return CapturedEngine(models[0], torch.bfloat16 if half else torch.float32, plain, TRITON)


def _can_search(config: SearchConfig) -> bool:
    return not config.sample and config.no_repeat_ngram is None and config.beam <= _WIDEST


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()
