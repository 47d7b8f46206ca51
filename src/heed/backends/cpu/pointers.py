"""Checked conversion of tensors and arrays to the addresses that C reads and writes; nothing else takes an address.

C trusts its arguments. So every conversion names the dtype and shape that the C code expects, and anything else is
refused before the call: another dtype (torch's default dtype and autocast change those), another device, a
non-contiguous tensor, another shape. An address keeps nothing alive: the caller holds the tensor until C returns.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

if TYPE_CHECKING:
    import torch


def pointer(x: "torch.Tensor", dtype: "torch.dtype", *shape: int) -> int:
    """The address of a contiguous CPU tensor of this dtype and shape."""
    if x.dtype is not dtype or not x.is_cpu or not x.is_contiguous() or x.shape != shape:
        raise TypeError(f"compiled code takes contiguous {dtype} {shape} on the CPU, found {_described(x)}")
    return x.data_ptr()


def pointer_or_none(x: "torch.Tensor | None", dtype: "torch.dtype", *shape: int) -> int | None:
    """The address of an optional tensor; None becomes NULL."""
    return None if x is None else pointer(x, dtype, *shape)


def strided_pointer(x: "torch.Tensor", dtype: "torch.dtype", *shape: int) -> int:
    """The address of a CPU tensor with any strides, where the C code gets the strides too."""
    if x.dtype is not dtype or not x.is_cpu or x.shape != shape:
        raise TypeError(f"compiled code takes {dtype} {shape} on the CPU, found {_described(x)}")
    return x.data_ptr()


def array_pointer(x: NDArray[Any], dtype: DTypeLike, *shape: int) -> int:
    """The address of a contiguous, aligned numpy array of this dtype and shape."""
    if x.dtype != dtype or not x.flags.c_contiguous or not x.flags.aligned or x.shape != shape:
        raise TypeError(
            f"compiled code takes contiguous {np.dtype(dtype)} {shape}, found {x.dtype} {x.shape}, "
            f"contiguous: {x.flags.c_contiguous}"
        )
    return int(x.ctypes.data)


def array_pointer_or_none(x: NDArray[Any] | None, dtype: DTypeLike, *shape: int) -> int | None:
    """The address of an optional array; None becomes NULL."""
    return None if x is None else array_pointer(x, dtype, *shape)


def _described(x: "torch.Tensor") -> str:
    return f"{x.dtype} {tuple(x.shape)} on {x.device}, strides {x.stride()}"
