"""The engine in C: which of its instruction sets runs, its functions, threads and error codes.

The library is built when heed is installed (`csrc/build.py`) and contains every function once for each instruction set;
`csrc/heed.h` documents them. The fastest one that this processor has is used, or the one in $HEED_ISA.
"""

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

from heed.backends.cpu.csrc.build import sources_digest
from heed.errors import ConfigError, InputError
from heed.fallbacks import note_fallback
from heed.model.torch_state import imported_torch

LIBRARY = Path(__file__).parent / ("engine.dll" if sys.platform == "win32" else "engine.so")
_BYTES_PER_THREAD = 2**22  # of weights: with fewer, synchronisation costs more than a thread saves
_NO_MEMORY = 1  # as in `csrc/heed.h`

_address, _integer, _status = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
_team = (_address, _integer)  # a pool and the number of threads
_FUNCTIONS = {
    "self_test": ctypes.CFUNCTYPE(_status),
    "linear": ctypes.CFUNCTYPE(_status, _address, _address, _address, _integer, *_team),
    "encode": ctypes.CFUNCTYPE(_status, _address, _address, _address, *_team),
    "decoder_step": ctypes.CFUNCTYPE(_status, _address, _address, *_team),
    "search": ctypes.CFUNCTYPE(_status, _address, _address, _address, _address),
    "beam_step": ctypes.CFUNCTYPE(_integer, *(_address,) * 2, *(_integer,) * 4, _address, *_team),
    "topk": ctypes.CFUNCTYPE(None, _address, *(_integer,) * 3, *(_address,) * 2, *_team),
    "attention": ctypes.CFUNCTYPE(_status, _address, *_team),
    "gemm": ctypes.CFUNCTYPE(_status, _address, *_team),
    "cross_entropy": ctypes.CFUNCTYPE(None, *(_address,) * 3, *(_integer,) * 3, *(ctypes.c_float,) * 2, *_team),
    "dropout": ctypes.CFUNCTYPE(None, *(_address,) * 3, *(_integer,) * 2, *_team),
    "bpe": ctypes.CFUNCTYPE(None, *(_address,) * 8, *(_integer,) * 2),
}


class _OpenMPStruct(ctypes.Structure):
    """`HeedOpenMP` of `csrc/heed.h`."""

    _fields_: ClassVar = [(name, _address) for name in ("parallel", "thread_index", "thread_count")]


class _EngineStruct(ctypes.Structure):
    """`HeedEngine` of `csrc/heed.h`: the functions for one instruction set."""

    _fields_: ClassVar = [("isa", ctypes.c_char_p), *_FUNCTIONS.items()]


@dataclass(frozen=True)
class NativeFunctions:
    """The functions of the compiled library for one instruction set; `csrc/heed.h` documents them."""

    isa: str
    open_pool: Callable[[int], int | None]
    open_openmp_pool: Callable[..., int | None]
    self_test: Callable[..., int]
    linear: Callable[..., int]
    encode: Callable[..., int]
    decoder_step: Callable[..., int]
    search: Callable[..., int]
    beam_step: Callable[..., int]
    topk: Callable[..., None]
    attention: Callable[..., int]
    gemm: Callable[..., int]
    cross_entropy: Callable[..., None]
    dropout: Callable[..., None]
    bpe: Callable[..., None]


class NoEngineError(Exception):
    """Why no compiled code can run; the caller falls back to torch."""


# ---- choice ----------------------------------------------------------------------------------------------------------


def engine() -> NativeFunctions:
    """The functions of the compiled library for this processor; raises where there are none."""
    if isinstance(loaded := _engine(), str):
        raise NoEngineError(loaded)
    return loaded


def missing_for_compiled_code() -> str | None:
    """Why this machine runs no compiled code; None: it does."""
    return loaded if isinstance(loaded := _engine(), str) else None


@cache
def _engine() -> NativeFunctions | str:
    """The engine for $HEED_ISA, by default the fastest one; or why there is none."""
    try:
        return _chosen(_open(LIBRARY), os.environ.get("HEED_ISA") or None)
    except (NoEngineError, OSError) as error:
        note_fallback(f"torch operators are used instead of compiled C, which is faster: {error}")
        return str(error)


def _open(file: Path) -> ctypes.CDLL:
    if not file.exists():
        raise NoEngineError("heed was installed without its C library; install it again where there is a C compiler")
    library = ctypes.CDLL(str(file))
    library.heed_isas.restype = library.heed_sources.restype = ctypes.c_char_p
    library.heed_engine.restype, library.heed_engine.argtypes = ctypes.POINTER(_EngineStruct), (ctypes.c_char_p,)
    library.heed_self_test.restype, library.heed_self_test.argtypes = _status, (ctypes.POINTER(_EngineStruct),)
    library.heed_open_pool.restype, library.heed_open_pool.argtypes = _address, (_integer,)
    library.heed_open_openmp_pool.restype, library.heed_open_openmp_pool.argtypes = _address, (_address,)
    if library.heed_sources().decode() != sources_digest():
        raise NoEngineError(f"{file} was built from other sources than those in csrc: run make setup or pip install")
    return library


def _chosen(library: ctypes.CDLL, requested: str | None) -> NativeFunctions:
    """The functions for the requested instruction set; by default the fastest that passes its self-test."""
    isas = library.heed_isas().decode().split()
    if requested is not None and requested not in isas:
        raise ConfigError(f"HEED_ISA = {requested!r} is not one of {', '.join(isas)}, which heed was built for")
    for isa in isas if requested is None else [requested]:
        if not (functions := library.heed_engine(isa.encode())):
            if requested is not None:
                raise ConfigError(f"HEED_ISA = {requested!r} cannot be used: this processor does not have it")
        elif library.heed_self_test(functions) == 0:
            functions_of_isa = (getattr(functions.contents, name) for name in _FUNCTIONS)
            return NativeFunctions(isa, library.heed_open_pool, library.heed_open_openmp_pool, *functions_of_isa)
        else:
            note_fallback(f"the compiled code for {isa} is not used: its self-test failed on this processor")
    raise NoEngineError("the self-tests of the compiled code failed on this processor")


# ---- calls -----------------------------------------------------------------------------------------------------------


def max_threads() -> int:
    """torch's number of threads; where torch was not imported, $OMP_NUM_THREADS or the usable cores."""
    torch = imported_torch()
    return _threads_without_torch() if torch is None else int(torch.get_num_threads())


def _threads_without_torch() -> int:
    first, *_ = os.environ.get("OMP_NUM_THREADS", "").split(",")  # one number for each level of nesting
    if first.strip().isdecimal() and int(first) > 0:
        return int(first)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_for(bytes_read: int) -> int:
    """The number of threads for an operation that reads so many bytes of weights, counted once per row."""
    return max(1, min(max_threads(), bytes_read // _BYTES_PER_THREAD))


def team(threads: int | None = None) -> tuple[int | None, int]:
    """The last two arguments of a call: a pool and the number of threads to use of it, by default all."""
    most = max_threads()
    threads = most if threads is None else threads
    return None if threads == 1 else _pools.of(max(threads, most)), threads


def team_of_torch() -> tuple[int | None, int]:
    """As `team`, for calls that alternate with torch's operators: the threads of these, where they can be called.

    torch's OpenMP threads spin for a while after each operator, and a pool of others would have to share the cores with
    them: on two cores, two threads trained no faster than one.
    """
    threads = max_threads()
    return (None if threads == 1 else _pools.of_torch() or _pools.of(threads)), threads


class _Pools:
    """Threads that wait for calls: a pool for each number of threads that was in force, and torch's."""

    def __init__(self) -> None:
        self._start()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._start_in_child)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._opened: dict[int, int | None] = {}
        self._torch: int | None = None
        self._torch_is_known = False

    def _start_in_child(self) -> None:
        """A child process has none of its parent's threads, and GNU's OpenMP would wait for them for ever."""
        self._start()
        self._torch_is_known = True

    def of(self, threads: int) -> int | None:
        if threads not in self._opened:
            with self._lock:
                if threads not in self._opened:
                    self._opened[threads] = engine().open_pool(threads)
        return self._opened[threads]

    def of_torch(self) -> int | None:
        """The threads of torch's OpenMP runtime; None: they cannot be called."""
        if not self._torch_is_known:
            with self._lock:
                if not self._torch_is_known and (openmp := _openmp_of_torch()) is not None:
                    self._torch = engine().open_openmp_pool(ctypes.byref(openmp))
                self._torch_is_known = True
        return self._torch


def _openmp_of_torch() -> _OpenMPStruct | None:
    """The functions of the OpenMP runtime that torch was linked to: GNU's, or LLVM's under the same names."""
    torch = imported_torch()
    if torch is None:
        return None
    library = ctypes.CDLL(torch._C.__file__)  # already loaded; its symbols include those of what it needs
    try:
        functions = [getattr(library, name) for name in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")]
    except AttributeError:
        note_fallback(
            "training in several threads is slower: heed cannot call the OpenMP runtime that torch was built with"
        )
        return None
    return _OpenMPStruct(*(ctypes.cast(function, _address) for function in functions))


_pools = _Pools()


def check_status(status: int, operation: str, expected: str = "") -> None:
    """Raise the error that a C function's return value stands for; 0: none."""
    if status == _NO_MEMORY:
        raise MemoryError(f"out of memory for {operation} in compiled code")
    if status:
        raise InputError(f"{operation} in compiled code takes {expected}")
