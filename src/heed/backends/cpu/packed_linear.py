"""x Wᵀ + b in compiled code, with W in panels, in float32 or in integers of 8 bits: `csrc/linear.h` from Python.

The twin is `torch.nn.functional.linear`; in integers, W and x are rounded first, each row of W and of x with a scale of
its own, its largest number over 127.
"""

import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional

from heed.artifacts.quantization import quantize_rows
from heed.backends.cpu.build import CannotCompileError, library
from heed.backends.cpu.large_pages import LargePages
from heed.backends.cpu.pointers import pointer, pointer_or_none
from heed.errors import HeedError, InputError
from heed.fallbacks import note_fallback

_FOR_A_THREAD = 2**22  # bytes of weights: with fewer, threads wait for each other longer than they read
_PANEL, _TOGETHER = 32, 4
_NO_MEMORY = 1  # as in `csrc/layers.h`


class Matrix(ctypes.Structure):
    """What the C calls a `Matrix`."""

    _fields_: ClassVar = [
        *((name, ctypes.c_void_p) for name in ("weight", "scales", "sums", "bias")),
        *((name, ctypes.c_int64) for name in ("outputs", "inputs")),
    ]


class Panels:
    """A matrix as it is read, and its bias; called with any rows x, the product.

    pages: where it is to lie, if beside others.
    """

    def __init__(
        self,
        weight: Float[Tensor, "outputs inputs"],
        bias: Float[Tensor, "outputs"] | None,
        *,
        integers: bool,
        pages: LargePages | None = None,
    ) -> None:
        outputs, inputs = weight.shape
        weight, scales, sums = weight.detach(), None, None
        if integers:
            weight, scales = quantize_rows(weight)
            sums = weight.sum(1, dtype=torch.int32)
        together = _TOGETHER if integers else 1
        panels = in_panels(weight, together, pages or LargePages())
        bias = None if bias is None else bias.detach().contiguous()
        self._kept = (panels, scales, sums, bias)  # what the structure points to
        lying = (-(-outputs // _PANEL), -(-inputs // together), _PANEL, together)
        self.matrix = Matrix(
            pointer(panels, torch.int8 if integers else torch.float32, *lying),
            pointer_or_none(scales, torch.float32, outputs), pointer_or_none(sums, torch.int32, outputs),
            pointer_or_none(bias, torch.float32, outputs), outputs, inputs,
        )  # fmt: skip
        self.bytes = panels.nbytes

    def __call__(self, x: Float[Tensor, "*tokens inputs"]) -> Float[Tensor, "*tokens outputs"]:
        """The product."""
        tokens, outputs = x.shape[:-1], self.matrix.outputs
        x, rows = x.contiguous(), tokens.numel()
        found = torch.empty(*tokens, outputs, dtype=torch.float32, device="cpu")
        ends = (pointer(x, torch.float32, *tokens, self.matrix.inputs), pointer(found, torch.float32, *found.shape))
        failed = native().heed_multiply(ctypes.byref(self.matrix), *ends, rows, threads_for(self.bytes * rows))
        check_done(failed, "a linear layer")
        return found


def in_panels(
    weight: Shaped[Tensor, "outputs inputs"], together: int, pages: LargePages
) -> Shaped[Tensor, "panels groups {_PANEL} {together}"]:
    """A matrix in the order in which it is read: 32 outputs at a time, and of those some inputs together at a time."""
    outputs, inputs = weight.shape
    padded = functional.pad(weight, (0, -inputs % together, 0, -outputs % _PANEL))
    ordered = padded.unflatten(1, (-1, together)).unflatten(0, (-1, _PANEL)).transpose(1, 2)
    return pages.like(ordered).copy_(ordered)


def threads_for(work: int) -> int:
    """How many threads are worth it for so many bytes of weights."""
    return max(1, min(torch.get_num_threads(), work // _FOR_A_THREAD))


def check_done(failed: int, what: str, expected: str = "") -> None:
    """Raise what a compiled function's return value stands for; 0: all is well."""
    if failed == _NO_MEMORY:
        raise MemoryError(f"there is no memory for {what} in compiled code")
    if failed:
        raise InputError(f"{what} in compiled code takes {expected}")


def can_compile(weight: Tensor) -> bool:
    """Whether compiled code can do what this model does: its weights are float32, on a CPU, and there is a compiler."""
    return weight.dtype == torch.float32 and weight.device.type == "cpu" and missing_for_compiled_code() is None


def integers_are_quick() -> bool:
    """Whether compiled code has this processor's instructions for products of bytes (AVX-512 VNNI)."""
    return missing_for_compiled_code() is None and bool(native().heed_quick_integers())


def missing_for_compiled_code() -> str | None:
    """Why this machine runs no compiled code, if it does not."""
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
