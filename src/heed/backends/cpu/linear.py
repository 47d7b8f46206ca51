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

from heed.backends.cpu.dropout import DropoutStruct
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
        ("relu", _integer),
        ("dropout", DropoutStruct),
        ("gate", _address),
        ("gate_scale", ctypes.c_float),
    ]


def matmul(
    a: Float[Tensor, "rows depth"],
    b: Float[Tensor, "depth columns"],
    bias: Float[Tensor, "columns"] | None = None,
    *,
    out: Float[Tensor, "rows columns"] | None = None,
    accumulate: bool = False,
    relu: DropoutStruct | None = None,
    gate: Float[Tensor, "rows columns"] | None = None,
    gate_scale: float = 1.0,
) -> Float[Tensor, "rows columns"]:
    """A B + bias; a transposed operand is not copied.

    out: written to, or added to if `accumulate`. relu: ReLU follows, and then this dropout. gate: where it is positive,
    the result is multiplied by `gate_scale`, elsewhere it becomes 0: the gradient of ReLU and dropout, of their result.
    """
    (rows, depth), columns = a.shape, b.shape[1]
    result = torch.empty(rows, columns, dtype=torch.float32, device="cpu") if out is None else out
    gemm = _GemmStruct(
        _StridedStruct(strided_pointer(a, torch.float32, rows, depth), *a.stride()),
        _StridedStruct(strided_pointer(b, torch.float32, depth, columns), *b.stride()),
        pointer(result, torch.float32, rows, columns), rows, depth, columns,
        pointer_or_none(bias, torch.float32, columns), accumulate,
        relu is not None, relu or DropoutStruct(), pointer_or_none(gate, torch.float32, rows, columns), gate_scale,
    )  # fmt: skip
    check_status(engine().gemm(ctypes.byref(gemm), *team_of_torch()), "a matmul")
    return result


def linear(
    x: Float[Tensor, "*tokens inputs"], weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, "outputs"]
) -> Float[Tensor, "*tokens outputs"]:
    """`functional.linear`, which small inputs go to."""
    if is_small(x, weight):
        return functional.linear(x, weight, bias)
    output = _Linear.apply(x.flatten(0, -2), weight, bias)  # type: ignore[no-untyped-call]
    return output.unflatten(0, x.shape[:-1])


def is_small(x: Tensor, weight: Tensor) -> bool:
    """Whether torch's linear layer is the faster one for this input."""
    return x.numel() * len(weight) < _MIN_MULTIPLICATIONS


class NativeLinear(nn.Linear):
    """Replacement of an `nn.Linear`, sharing its weights."""

    def __init__(self, part: nn.Linear) -> None:
        nn.Module.__init__(self)
        vars(self).update(vars(part))

    def forward(self, x: Float[Tensor, "*tokens inputs"]) -> Float[Tensor, "*tokens outputs"]:
        return linear(x, self.weight, self.bias)


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
