"""Memory that is kept between steps, on a CPU.

By default the C library gives every large block back to the system and asks for it anew, and the system clears each
page of it again: in a step that makes hundreds of large blocks that costs more than much of the arithmetic.
"""

import ctypes
import sys

_SETTINGS = {-1: 2**31 - 1, -4: 0}  # glibc's M_TRIM_THRESHOLD, and M_MMAP_MAX: no block by itself


def keep_freed_memory() -> bool:
    """From now on this process keeps what it has freed, for whatever it needs next; False where that cannot be set."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's; others have none
    if mallopt is None:
        return False
    return all(mallopt(name, value) == 1 for name, value in _SETTINGS.items())
