"""The compiled library and how it is called: argument types, number of threads, error codes."""

import ctypes
import sys
from functools import cache
from pathlib import Path

import torch

from heed.backends.cpu.build import CannotCompileError, library
from heed.errors import HeedError, InputError
from heed.fallbacks import note_fallback

_FOR_A_THREAD = 2**22  # bytes of weights: with fewer, threads wait for each other longer than they read
_NO_MEMORY = 1  # as in `csrc/layers.h`


def threads_for(work: int) -> int:
    """How many threads are worth it for so many bytes of weights."""
    return max(1, min(torch.get_num_threads(), work // _FOR_A_THREAD))


def check_done(failed: int, what: str, expected: str = "") -> None:
    """Raise what a compiled function's return value stands for; 0: all is well."""
    if failed == _NO_MEMORY:
        raise MemoryError(f"there is no memory for {what} in compiled code")
    if failed:
        raise InputError(f"{what} in compiled code takes {expected}")


def has_int8() -> bool:
    """Whether the library has this processor's int8 instructions (AVX-512 VNNI)."""
    return missing_for_compiled_code() is None and bool(native().heed_quick_integers())


def missing_for_compiled_code() -> str | None:
    """Why this machine runs no compiled code; None: it does."""
    found = _library()
    return found if isinstance(found, str) else None


def native() -> ctypes.CDLL:
    """The compiled code."""
    found = _library()
    if isinstance(found, str):
        raise CannotCompileError(found)
    return found


@cache
def _library() -> ctypes.CDLL | str:
    """The code or what is missing, found out once: compiling in vain takes as long as compiling."""
    try:
        found = library(Path(__file__).parent / "csrc" / "heed.c")
    except (CannotCompileError, OSError, HeedError) as error:
        slower = f"nothing runs in compiled code, but by torch's operators, which are slower: {error}"
        note_fallback(slower, quietly=sys.platform != "linux")
        return str(error)
    address, integer = ctypes.c_void_p, ctypes.c_int64
    found.heed_multiply.argtypes = (address, address, address, integer, integer)
    found.heed_step.argtypes = found.heed_encode.argtypes = (address, address, integer)
    found.heed_attend.argtypes = found.heed_product.argtypes = (address, integer)
    found.heed_grow.argtypes, found.heed_grow.restype = (*(address,) * 2, *(integer,) * 4, address, integer), integer
    found.heed_to_gradient.argtypes = (*(address,) * 3, *(integer,) * 3, ctypes.c_float, integer)
    found.heed_drop.argtypes = (*(address,) * 3, *(integer,) * 3)
    found.heed_rank.argtypes, found.heed_rank.restype = (address, *(integer,) * 3, *(address,) * 2, integer), None
    found.heed_drop.restype = found.heed_to_gradient.restype = found.heed_cut.restype = None
    found.heed_cut.argtypes = (*(address,) * 8, *(integer,) * 2)
    return found
