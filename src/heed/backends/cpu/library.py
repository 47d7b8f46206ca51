"""The compiled C library: loading, argument types, thread counts and error codes."""

import ctypes
import sys
from functools import cache
from pathlib import Path

import torch

from heed.backends.cpu.build import CannotCompileError, library
from heed.errors import HeedError, InputError
from heed.fallbacks import note_fallback

_BYTES_PER_THREAD = 2**22  # of weights: with fewer, synchronisation costs more than a thread saves
_NO_MEMORY = 1  # as in `csrc/linear.h`


def threads_for(bytes_read: int) -> int:
    """The number of threads for an operation that reads so many bytes of weights, counted once per row."""
    return max(1, min(torch.get_num_threads(), bytes_read // _BYTES_PER_THREAD))


def check_status(status: int, operation: str, expected: str = "") -> None:
    """Raise the error that a C function's return value stands for; 0: none."""
    if status == _NO_MEMORY:
        raise MemoryError(f"out of memory for {operation} in compiled code")
    if status:
        raise InputError(f"{operation} in compiled code takes {expected}")


def has_int8() -> bool:
    """Whether the library has this processor's int8 instructions (AVX-512 VNNI)."""
    return missing_for_compiled_code() is None and bool(native().heed_has_vnni())


def missing_for_compiled_code() -> str | None:
    """Why this machine runs no compiled code; None: it does."""
    loaded = _library()
    return loaded if isinstance(loaded, str) else None


def native() -> ctypes.CDLL:
    """The compiled library; raises where there is none."""
    loaded = _library()
    if isinstance(loaded, str):
        raise CannotCompileError(loaded)
    return loaded


@cache
def _library() -> ctypes.CDLL | str:
    """The library, or why there is none. Cached, since a failed attempt takes as long as compiling."""
    try:
        code = library(Path(__file__).parent / "csrc" / "heed.c")
    except (CannotCompileError, OSError, HeedError) as error:
        slower = f"torch operators are used instead of compiled C, which is faster: {error}"
        note_fallback(slower, quietly=sys.platform != "linux")
        return str(error)
    address, integer = ctypes.c_void_p, ctypes.c_int64
    code.heed_linear.argtypes = (address, address, address, integer, integer)
    code.heed_encode.argtypes = (address, address, address, integer)
    code.heed_decoder_step.argtypes = (address, address, integer)
    code.heed_search.argtypes = (address, address, address, address)
    code.heed_attention.argtypes = code.heed_gemm.argtypes = (address, integer)
    code.heed_beam_step.argtypes = (*(address,) * 2, *(integer,) * 4, address, integer)
    code.heed_cross_entropy.argtypes = (*(address,) * 3, *(integer,) * 3, ctypes.c_float, integer)
    code.heed_dropout.argtypes = (*(address,) * 3, *(integer,) * 3)
    code.heed_topk.argtypes = (address, *(integer,) * 3, *(address,) * 2, integer)
    code.heed_bpe.argtypes = (*(address,) * 8, *(integer,) * 2)
    code.heed_beam_step.restype = integer
    code.heed_dropout.restype = code.heed_cross_entropy.restype = code.heed_bpe.restype = code.heed_topk.restype = None
    return code
