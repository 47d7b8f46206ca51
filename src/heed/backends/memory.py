"""Memory on a CPU: what is freed is kept for the next step, and weights lie in large pages.

By default the C library gives every large block back to the system and asks for it anew, and the system clears each
page of it again: in a step that makes hundreds of large blocks that costs more than much of the arithmetic.

A processor remembers where some thousand pages are, and a model that is read from end to end at every step has tens of
thousands of the usual size. So many matrices share few large pieces of memory, which are asked for from the system:
what the process has used before lies in small pages already.
"""

import ctypes
import mmap
import sys
from contextlib import suppress

import torch
from jaxtyping import Shaped
from torch import Tensor

from heed.fallbacks import note_fallback

_SETTINGS = {-1: 2**31 - 1, -4: 0}  # glibc's M_TRIM_THRESHOLD, and M_MMAP_MAX: no block by itself


def keep_freed_memory() -> bool:
    """From now on this process keeps what it has freed, for whatever it needs next; False where that cannot be set."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's; others have none
    if mallopt is None:
        return False
    return all(mallopt(name, value) == 1 for name, value in _SETTINGS.items())


_PIECE = 2**26  # bytes asked for at a time; what is not used costs nothing
_ALIGNED = 64


class LargePages:
    """Memory that is taken bit by bit. A piece goes back when nothing that was taken of it is left."""

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8, device="cpu")

    def like(self, numbers: Shaped[Tensor, "*any"]) -> Shaped[Tensor, "*any"]:
        """Room for as many numbers of this kind, in rows of this shape."""
        size = -(-numbers.nbytes // _ALIGNED) * _ALIGNED
        if size > len(self._left):
            try:
                self._left = _piece(max(size, _PIECE))
            except OSError as error:  # so large a piece is not to be had; only as much as is needed may be
                note_fallback(f"weights lie in small pages of memory, which are slower to read: {error}")
                return torch.empty(numbers.shape, dtype=numbers.dtype, device="cpu")
        taken, self._left = self._left[: numbers.nbytes], self._left[size:]
        return taken.view(numbers.dtype).view(numbers.shape)


def _piece(size: int) -> Shaped[Tensor, "{size}"]:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a system that has none: then in small ones
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
