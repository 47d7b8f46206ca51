"""Linear layers for training on a CPU: the GEMM of `csrc/gemm.h` from Python, and a module that replaces `nn.Linear`.

torch's float32 matmul is MKL's, which is tuned for Intel; on AMD processors it reaches nine tenths of the speed of this
one. The reference is `torch.nn.Linear`.
"""

import ctypes
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from heed.backends.cpu.library import check_status, engine, team_of_torch
from heed.backends.cpu.pointers import pointer, pointer_or_none, strided_pointer
from heed.model.transformer import replace_modules

_MIN_MULTIPLICATIONS = 2**22  # of a matmul; below, the overhead of the call dominates
_address, _integer = ctypes.c_void_p, ctypes.c_int64


class _StridedStruct(ctypes.Structure):
    _fields_: ClassVar = [("data", _address), ("row_stride", _integer), ("col_stride", _integer)]


class _GemmStruct(ctypes.Structure):
    _fields_: ClassVar = [
        *((name, _StridedStruct) for name in ("a", "b")),
        ("c", _address),
        *((name, _integer) for name in ("rows", "depth", "columns")),
        ("bias", _address),
        ("accumulate", _integer),
    ]


def matmul(
    a: Float[Tensor, "rows depth"],
    b: Float[Tensor, "depth columns"],
    bias: Float[Tensor, "columns"] | None = None,
    *,
    out: Float[Tensor, "rows columns"] | None = None,
    accumulate: bool = False,
) -> Float[Tensor, "rows columns"]:
    """A B + bias; a transposed operand is not copied. out: written to, or added to if `accumulate`."""
    (rows, depth), columns = a.shape, b.shape[1]
    result = torch.empty(rows, columns, dtype=torch.float32, device="cpu") if out is None else out
    gemm = _GemmStruct(
        _StridedStruct(strided_pointer(a, torch.float32, rows, depth), *a.stride()),
        _StridedStruct(strided_pointer(b, torch.float32, depth, columns), *b.stride()),
        pointer(result, torch.float32, rows, columns), rows, depth, columns,
        pointer_or_none(bias, torch.float32, columns), accumulate,
    )  # fmt: skip
    check_status(engine().gemm(ctypes.byref(gemm), *team_of_torch()), "a matmul")
    return result


class NativeLinear(nn.Module):
    """Replacement of an `nn.Linear`, sharing its weights; small inputs go to torch."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Float[Tensor, "*tokens inputs"]) -> Float[Tensor, "*tokens outputs"]:
        if x.numel() * len(self.weight) < _MIN_MULTIPLICATIONS:
            return functional.linear(x, self.weight, self.bias)
        output = _Linear.apply(x.flatten(0, -2), self.weight, self.bias)  # type: ignore[no-untyped-call]
        return output.unflatten(0, x.shape[:-1])


def use_native_linear(model: nn.Module) -> None:
    """Replace every `nn.Linear` of a model."""
    replace_modules(model, nn.Linear, NativeLinear)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return matmul(x, weight.t(), bias)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return matmul(grad_output, weight), matmul(grad_output.t(), x), grad_output.sum(0)
