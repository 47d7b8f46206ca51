"""x Wᵀ + b in compiled code, with W in panels, in float32 or in integers of 8 bits: `csrc/linear.h` from Python.

The twin is `torch.nn.functional.linear`; in integers, W and x are rounded first, each row of W and of x with a scale of
its own, its largest number over 127.
"""

import ctypes
from typing import ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional

from heed.artifacts.quantization import quantize_rows
from heed.backends.cpu.library import check_done, native, threads_for
from heed.backends.cpu.pointers import pointer, pointer_or_none
from heed.backends.memory import LargePages

_PANEL, _TOGETHER = 32, 4


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
        """The linear layer of these weights and this bias, in float32."""
        tokens, outputs = x.shape[:-1], self.matrix.outputs
        x, rows = x.contiguous(), tokens.numel()
        found = torch.empty(*tokens, outputs, dtype=torch.float32, device="cpu")
        ends = (pointer(x, torch.float32, *tokens, self.matrix.inputs), pointer(found, torch.float32, *found.shape))
        failed = native().heed_multiply(ctypes.byref(self.matrix), *ends, rows, threads_for(self.bytes * rows))
        check_done(failed, "a linear layer")
        return found


def in_panels(
    weight: Shaped[Tensor, "outputs inputs"], together: int, pages: LargePages
) -> Shaped[Tensor, f"panels groups {_PANEL} {{together}}"]:
    """A matrix in the order in which it is read: 32 outputs at a time, and of those some inputs together at a time."""
    outputs, inputs = weight.shape
    padded = functional.pad(weight, (0, -inputs % together, 0, -outputs % _PANEL))
    ordered = padded.unflatten(1, (-1, together)).unflatten(0, (-1, _PANEL)).transpose(1, 2)
    return pages.like(ordered).copy_(ordered)
