"""Linear layers for inference on a CPU, with prepacked weights in float32 or int8: `csrc/linear.h` from Python.

The reference is `torch.nn.functional.linear`. In int8 each row of W and each row of x is quantised with its own scale,
its largest absolute value over 127.
"""

import ctypes
from typing import ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional

from heed.artifacts.quantization import quantize_rows
from heed.backends.cpu.library import check_status, engine, team, threads_for
from heed.backends.cpu.pointers import pointer, pointer_or_none
from heed.backends.memory import HugePages

_PANEL, _GROUP = 32, 4  # as in `csrc/heed.h`


class MatrixStruct(ctypes.Structure):
    """The struct `HeedMatrix` of `csrc/heed.h`."""

    _fields_: ClassVar = [
        *((name, ctypes.c_void_p) for name in ("weight", "output_scales", "output_sums", "bias")),
        *((name, ctypes.c_int64) for name in ("outputs", "inputs")),
    ]


class PackedLinear:
    """x Wᵀ + b with a packed copy of W; pages: memory shared with other matrices."""

    def __init__(
        self,
        weight: Float[Tensor, "outputs inputs"],
        bias: Float[Tensor, "outputs"] | None,
        *,
        int8: bool,
        pages: HugePages | None = None,
    ) -> None:
        outputs, inputs = weight.shape
        weight, scales, sums = weight.detach(), None, None
        if int8:
            weight, scales = quantize_rows(weight)
            sums = weight.sum(1, dtype=torch.int32)
        group = _GROUP if int8 else 1
        panels = pack_panels(weight, group, pages or HugePages())
        bias = None if bias is None else bias.detach().contiguous()
        self._kept = (panels, scales, sums, bias)  # keeps alive what the structure points to
        shape = (-(-outputs // _PANEL), -(-inputs // group), _PANEL, group)
        self.matrix = MatrixStruct(
            pointer(panels, torch.int8 if int8 else torch.float32, *shape),
            pointer_or_none(scales, torch.float32, outputs), pointer_or_none(sums, torch.int32, outputs),
            pointer_or_none(bias, torch.float32, outputs), outputs, inputs,
        )  # fmt: skip
        self.bytes = panels.nbytes

    def __call__(self, x: Float[Tensor, "*tokens inputs"]) -> Float[Tensor, "*tokens outputs"]:
        """x Wᵀ + b, in float32 whatever the weights."""
        tokens, outputs = x.shape[:-1], self.matrix.outputs
        x, rows = x.contiguous(), tokens.numel()
        y = torch.empty(*tokens, outputs, dtype=torch.float32, device="cpu")
        pointers = (pointer(x, torch.float32, *tokens, self.matrix.inputs), pointer(y, torch.float32, *y.shape))
        threads = threads_for(self.bytes * rows)
        status = engine().linear(ctypes.byref(self.matrix), *pointers, rows, *team(threads))
        check_status(status, "a linear layer")
        return y


def pack_panels(
    weight: Shaped[Tensor, "outputs inputs"], group: int, pages: HugePages
) -> Shaped[Tensor, f"panels groups {_PANEL} {{group}}"]:
    """A copy of W in the order in which it is read: panels of 32 outputs, with `group` adjacent inputs each."""
    outputs, inputs = weight.shape
    padded = functional.pad(weight, (0, -inputs % group, 0, -outputs % _PANEL))
    ordered = padded.unflatten(1, (-1, group)).unflatten(0, (-1, _PANEL)).transpose(1, 2)
    return pages.empty_like(ordered).copy_(ordered)
