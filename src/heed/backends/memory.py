"""CPU memory: freed blocks are kept for reuse, and weights are allocated in huge pages.

By default glibc returns every large block to the system and maps a new one, whose pages the kernel zeroes again. In a
training or decoder step with hundreds of large blocks these page faults cost more than much of the arithmetic.

The TLB holds some thousand pages, while a model whose weights are all read in every step spans tens of thousands of
4 KiB pages. So the matrices are placed in a few large anonymous mappings, for which huge pages are requested; memory
that the process has used before is mapped in small pages already.
"""

import ctypes
import math
import mmap
import sys
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from heed.fallbacks import note_fallback

_MALLOC_OPTIONS = {-1: 2**31 - 1, -4: 0}  # glibc's M_TRIM_THRESHOLD: never; M_MMAP_MAX: no separate mappings


def keep_freed_memory() -> bool:
    """Make this process keep freed memory for its next allocations; False where malloc has no such options."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # only glibc has it
    if mallopt is None:
        return False
    return all(mallopt(option, value) == 1 for option, value in _MALLOC_OPTIONS.items())


_MAPPING = 2**26  # bytes mapped at a time; untouched pages cost nothing
_ALIGNMENT = 64


class HugePages:
    """An arena of huge pages. A mapping is freed when no array in it is left."""

    def __init__(self) -> None:
        self._free = np.empty(0, np.uint8)

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """A contiguous, uninitialised array."""
        dtype = np.dtype(dtype)
        used = math.prod(shape) * dtype.itemsize
        size = -(-used // _ALIGNMENT) * _ALIGNMENT
        if size > len(self._free):
            try:
                self._free = _mapping(max(size, _MAPPING))
            except OSError as error:  # no mapping this large; an ordinary allocation of just this array may succeed
                note_fallback(f"weights are allocated in small memory pages, which are slower to read: {error}")
                return _aligned(size)[:used].view(dtype).reshape(shape)
        taken, self._free = self._free[:used], self._free[size:]
        return taken.view(dtype).reshape(shape)


def _mapping(size: int) -> NDArray[np.uint8]:
    if not hasattr(mmap, "MADV_HUGEPAGE"):  # only Linux has this call; macOS and Windows choose the size of pages
        return _aligned(size)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def _aligned(size: int) -> NDArray[np.uint8]:
    """Ordinary memory, aligned to a cache line."""
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % _ALIGNMENT
    return memory[start : start + size]
