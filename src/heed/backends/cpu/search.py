"""A whole search on a CPU in one call of compiled C: `csrc/search.h` from Python.

Enters: token ids of sources. Leaves: hypotheses. Python runs only between steps, for `SearchMonitor` and Ctrl-C; the
interpreter's lock is released, so several threads can search at once. The reference is `decoding/search.py`.
"""

import ctypes
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heed.backends.cpu.layers import LayerStack
from heed.backends.cpu.library import check_status, engine, team, threads_for
from heed.backends.cpu.pointers import array_pointer
from heed.backends.cpu.positions import PositionsStruct
from heed.backends.protocol import Hypothesis, Prefixes, SearchMonitor, Sources
from heed.config import ModelConfig
from heed.search_config import SearchConfig

_MAX_ROWS = 128  # hypotheses per step: more do not make better use of the weights once they are in cache
_STEPS_BETWEEN = 16  # at most, between calls of Python that need not come before every step
_BYTES_BETWEEN = 1 << 29  # of weights, counted once per row: what a core computes with in about 4 ms
_INVALID, _NO_HYPOTHESIS = 2, 4  # as in `csrc/heed.h`

_address, _integer = ctypes.c_void_p, ctypes.c_int64
_BeforeStep = ctypes.CFUNCTYPE(_integer, ctypes.POINTER(_integer), _integer)


class EncoderInput(ctypes.Structure):
    """`HeedEncoderInput` in C: the tokens of packed sentences."""

    _fields_: ClassVar = [
        ("ids", _address),
        ("cu_seqlens", _address),
        ("sentences", _integer),
        ("positions", PositionsStruct),
    ]


class _SearchSettings(ctypes.Structure):
    _fields_: ClassVar = [
        *((name, _integer) for name in ("beam", "nbest", "min_length", "no_repeat_ngram", "stop_first")),
        ("length_penalty", ctypes.c_double),
        *((name, _integer) for name in ("pad", "bos", "eos")),
    ]


class _SearchInput(ctypes.Structure):
    _fields_: ClassVar = [
        ("source", EncoderInput),
        *((name, _address) for name in ("prefix_ids", "prefix_starts", "max_lengths")),
        ("positions", PositionsStruct),
        ("slots", _integer),
        ("pool", _address),
        ("threads", _integer),
        ("before_step", _BeforeStep),
        ("steps_between", _integer),
        *((name, _address) for name in ("cancelled", "tokens", "token_starts", "lengths", "log_probs", "truncated")),
    ]


class _Packed(NamedTuple):
    """Sequences of ids, concatenated, and where each begins."""

    ids: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, sequences: Iterable[Sequence[int]]) -> "_Packed":
        sequences = list(sequences)
        ids = np.fromiter(chain.from_iterable(sequences), np.int64)
        return cls(ids, np.cumsum([0, *map(len, sequences)]))

    def pointers(self) -> tuple[int, int]:
        return array_pointer(self.ids, np.int64, len(self.ids)), array_pointer(self.starts, np.int64, len(self.starts))


class _Results:
    """Arrays that C fills in, with room for `nbest` hypotheses of each sentence."""

    def __init__(self, max_lengths: Sequence[int], nbest: int) -> None:
        self._shape, self._max_lengths = (len(max_lengths), nbest), max_lengths
        self._starts: NDArray[np.int64] = np.cumsum([0, *(length * nbest for length in max_lengths)])
        self._tokens = np.empty(max(1, int(self._starts[-1])), np.int64)
        count = len(max_lengths) * nbest
        self._lengths, self._truncated = np.empty(count, np.int64), np.empty(count, np.int64)
        self._log_probs = np.empty(count, np.float64)

    def pointers(self) -> list[int]:
        arrays: list[NDArray[Any]] = [self._tokens, self._starts, self._lengths, self._log_probs, self._truncated]
        return [array_pointer(array, array.dtype, len(array)) for array in arrays]

    def hypotheses(self, alpha: float) -> list[list[Hypothesis]]:
        """The hypotheses of each sentence; C marks those that do not exist with a length of -1."""
        arrays = (array.reshape(self._shape).tolist() for array in (self._lengths, self._log_probs, self._truncated))
        results = []
        for start, room, *sentence in zip(self._starts.tolist(), self._max_lengths, *arrays):  # noqa: B905
            found = [
                Hypothesis.of(
                    self._tokens[start + rank * room :][:length].tolist(), log_prob, alpha, truncated=bool(truncated)
                )
                for rank, (length, log_prob, truncated) in enumerate(zip(*sentence, strict=True))
                if length >= 0
            ]
            results.append(found)
        return results


class _Callback:
    """What Python does between steps; keeps an exception until C has returned."""

    def __init__(self, sentences: int, monitor: SearchMonitor | None, bytes_per_step: int) -> None:
        self.cancelled = np.zeros(max(1, sentences), np.uint8)
        self.error: BaseException | None = None
        self.steps_between = _STEPS_BETWEEN
        if monitor is not None:  # a call waits for the interpreter's lock, maybe longer than a small model's step takes
            several = min(_STEPS_BETWEEN, _BYTES_BETWEEN // bytes_per_step)
            self.steps_between = 1 if monitor.every_step else max(1, several)
        self._monitor = monitor

    def __call__(self, sentences: Any, count: int) -> int:
        try:
            if self._monitor is not None:
                self._monitor.before_step()
                for sentence in sentences[:count]:
                    self.cancelled[sentence] = self._monitor.is_cancelled(sentence)
        except BaseException as error:
            self.error = error
        return int(self.error is not None)


class NativeSearch:
    """Beam or greedy search over one model in C; safe to call from several threads at once."""

    def __init__(self, config: ModelConfig, stacks: tuple[LayerStack, LayerStack]) -> None:
        self._special, self._stacks = (config.pad_id, config.bos_id, config.eos_id), stacks
        self._run: Callable[..., int] = engine().search

    def __call__(
        self,
        sources: Sources,
        max_lengths: Sequence[int],
        config: SearchConfig,
        prefixes: Prefixes,
        monitor: SearchMonitor | None,
    ) -> list[list[Hypothesis]] | None:
        """The best hypotheses of each source; None: the stepwise search runs, or says what is wrong with the input."""
        prefixes = [()] * len(sources) if prefixes is None else prefixes
        if not sources or config.sample or not len(sources) == len(max_lengths) == len(prefixes):
            return None
        encoder, decoder = self._stacks
        source, prefix = _Packed.of([*ids, self._special[2]] for ids in sources), _Packed.of(prefixes)
        longest, results = max(map(len, sources)) + 1, _Results(max_lengths, config.nbest)
        limits, slots = np.array(max_lengths, np.int64), _slots(len(sources), longest, config)
        bytes_per_step = decoder.bytes * slots * config.beam
        callback = _Callback(len(sources), monitor, bytes_per_step)
        before_step = _BeforeStep(callback)
        lengths = (longest, max(max_lengths) + 1)
        positions = [stack.positions.struct(length) for stack, length in zip(self._stacks, lengths, strict=True)]
        settings = _SearchSettings(
            config.beam, config.nbest, config.min_length, config.no_repeat_ngram or 0, config.stop == "first",
            config.length_penalty, *self._special,
        )  # fmt: skip
        search_input = _SearchInput(
            EncoderInput(*source.pointers(), len(sources), positions[0]), *prefix.pointers(),
            array_pointer(limits, np.int64, len(sources)), positions[1], slots,
            *team(threads_for(bytes_per_step)), before_step, callback.steps_between,
            array_pointer(callback.cancelled, np.uint8, len(sources)), *results.pointers(),
        )  # fmt: skip
        structures = (encoder.model, decoder.model, settings, search_input)
        status = self._run(*(ctypes.byref(structure) for structure in structures))
        if callback.error is not None:
            raise callback.error
        if status in (_INVALID, _NO_HYPOTHESIS):
            return None
        check_status(status, "a search")
        return results.hypotheses(config.length_penalty)


def _slots(sentences: int, longest: int, config: SearchConfig) -> int:
    """The number of sentences to translate at a time; others wait. longest: tokens of the longest source."""
    rows = _MAX_ROWS if config.tokens_per_batch is None else min(_MAX_ROWS, config.tokens_per_batch // longest)
    return min(sentences, max(1, rows // config.beam))
