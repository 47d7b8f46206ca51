"""Linear layers for training on a CPU, in compiled code: `csrc/gemm.h` from Python.

MKL, which torch calls for float32 matmuls, is made for Intel's processors; on AMD's it has nine tenths of the speed of
these. The reference is `torch.nn.Linear`.
"""

import ctypes
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from heed.backends.cpu.library import check_done, native
from heed.backends.cpu.pointers import pointer, pointer_or_none, strided_pointer
from heed.model.transformer import replace_modules

_SMALL = 2**22  # multiplications of a matmul below which the call takes too long
_address, _integer = ctypes.c_void_p, ctypes.c_int64


class _Numbers(ctypes.Structure):
    _fields_: ClassVar = [("numbers", _address), ("down", _integer), ("right", _integer)]


class _Product(ctypes.Structure):
    _fields_: ClassVar = [
        *((name, _Numbers) for name in ("a", "b")),
        ("c", _address),
        *((name, _integer) for name in ("rows", "depth", "columns")),
        ("bias", _address),
        ("adds", _integer),
    ]


def matmul(
    a: Float[Tensor, "rows depth"],
    b: Float[Tensor, "depth columns"],
    bias: Float[Tensor, "columns"] | None = None,
    *,
    to: Float[Tensor, "rows columns"] | None = None,
    adds: bool = False,
) -> Float[Tensor, "rows columns"]:
    """A B + bias; either may be a transpose, of which no copy is made. Put, or added, to a matrix if one is given."""
    (rows, depth), columns = a.shape, b.shape[1]
    found = torch.empty(rows, columns, dtype=torch.float32, device="cpu") if to is None else to
    product = _Product(
        _Numbers(strided_pointer(a, torch.float32, rows, depth), *a.stride()),
        _Numbers(strided_pointer(b, torch.float32, depth, columns), *b.stride()),
        pointer(found, torch.float32, rows, columns), rows, depth, columns,
        pointer_or_none(bias, torch.float32, columns), adds,
    )  # fmt: skip
    check_done(native().heed_product(ctypes.byref(product), torch.get_num_threads()), "a matmul")
    return found


class CompiledLinear(nn.Module):
    """A linear layer's weights, used by compiled code where there is enough to do."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Float[Tensor, "*tokens inputs"]) -> Float[Tensor, "*tokens outputs"]:
        """x Wᵀ + b."""
        if x.numel() * len(self.weight) < _SMALL:
            return functional.linear(x, self.weight, self.bias)
        found = _Linear.apply(x.flatten(0, -2), self.weight, self.bias)  # type: ignore[no-untyped-call]
        return found.unflatten(0, x.shape[:-1])


def with_native_linear(model: nn.Module) -> None:
    """Give a model these in all places of torch's own."""
    replace_modules(model, nn.Linear, CompiledLinear)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return matmul(x, weight.t(), bias)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return matmul(above, weight), matmul(above.t(), x), above.sum(0)
