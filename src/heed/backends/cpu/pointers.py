"""Tensors and arrays to the addresses that compiled code reads and writes: the only way there.

C believes what it is given. So each address goes with what the C takes it for, and anything else is refused before the
call: another dtype (torch's default dtype and autocast change those), another device, numbers that do not lie in one
run, another shape. An address keeps nothing alive: whoever asks for one holds the tensor until the call is over.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor


def pointer(x: Tensor, dtype: torch.dtype, *shape: int) -> int:
    """Where a tensor's numbers begin: of this dtype and shape, in this machine's memory, one after another."""
    if x.dtype is not dtype or not x.is_cpu or not x.is_contiguous() or x.shape != shape:
        raise TypeError(f"compiled code takes contiguous {dtype} {shape} on the CPU, found {_described(x)}")
    return x.data_ptr()


def pointer_or_none(x: Tensor | None, dtype: torch.dtype, *shape: int) -> int | None:
    """The same of something that may be left out."""
    return None if x is None else pointer(x, dtype, *shape)


def strided_pointer(x: Tensor, dtype: torch.dtype, *shape: int) -> int:
    """The same of numbers that may lie apart, where the C is given the strides too."""
    if x.dtype is not dtype or not x.is_cpu or x.shape != shape:
        raise TypeError(f"compiled code takes {dtype} {shape} on the CPU, found {_described(x)}")
    return x.data_ptr()


def array_pointer(x: NDArray[Any], dtype: DTypeLike, length: int) -> int:
    """Where a numpy array of one dimension begins."""
    if x.dtype != dtype or not x.flags.c_contiguous or x.shape != (length,):
        raise TypeError(
            f"compiled code takes contiguous {np.dtype(dtype)} {(length,)}, found {x.dtype} {x.shape}, "
            f"contiguous: {x.flags.c_contiguous}"
        )
    return int(x.ctypes.data)


def _described(x: Tensor) -> str:
    return f"{x.dtype} {tuple(x.shape)} on {x.device}, strides {x.stride()}"
