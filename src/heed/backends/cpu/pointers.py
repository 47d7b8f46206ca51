"""Checked conversion of tensors and arrays to the addresses that C reads and writes; nothing else takes an address.

C trusts its arguments. So every conversion names the dtype and shape that the C code expects, and anything else is
refused before the call: another dtype (torch's default dtype and autocast change those), another device, a
non-contiguous tensor, another shape. An address keeps nothing alive: the caller holds the tensor until C returns.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor


def pointer(x: Tensor, dtype: torch.dtype, *shape: int) -> int:
    """The address of a contiguous CPU tensor of this dtype and shape."""
    if x.dtype is not dtype or not x.is_cpu or not x.is_contiguous() or x.shape != shape:
        raise TypeError(f"compiled code takes contiguous {dtype} {shape} on the CPU, found {_described(x)}")
    return x.data_ptr()


def pointer_or_none(x: Tensor | None, dtype: torch.dtype, *shape: int) -> int | None:
    """The address of an optional tensor; None becomes NULL."""
    return None if x is None else pointer(x, dtype, *shape)


def strided_pointer(x: Tensor, dtype: torch.dtype, *shape: int) -> int:
    """The address of a CPU tensor with any strides, where the C code gets the strides too."""
    if x.dtype is not dtype or not x.is_cpu or x.shape != shape:
        raise TypeError(f"compiled code takes {dtype} {shape} on the CPU, found {_described(x)}")
    return x.data_ptr()


def array_pointer(x: NDArray[Any], dtype: DTypeLike, length: int) -> int:
    """The address of a contiguous one-dimensional numpy array."""
    if x.dtype != dtype or not x.flags.c_contiguous or x.shape != (length,):
        raise TypeError(
            f"compiled code takes contiguous {np.dtype(dtype)} {(length,)}, found {x.dtype} {x.shape}, "
            f"contiguous: {x.flags.c_contiguous}"
        )
    return int(x.ctypes.data)


def _described(x: Tensor) -> str:
    return f"{x.dtype} {tuple(x.shape)} on {x.device}, strides {x.stride()}"
