"""Linear layer whose bias gradient is a Triton kernel.

The bias gradient is the sum of the output gradient over all tokens. Where layers are narrow, torch's reduction takes as
long for it as the matmul of the weight gradient takes.

The reference is `torch.nn.functional.linear`.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from heed.backends.cuda.column_sums import column_sums
from heed.model.transformer import replace_modules


def linear(x: Float[Tensor, "*N I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, "O"]) -> Float[Tensor, "*N O"]:
    """`functional.linear`, with a faster gradient of the bias."""
    return _LinearFunction.apply(x, weight, bias)  # type: ignore[no-untyped-call]


class TritonLinear(nn.Module):
    """Replacement of an `nn.Linear` with a bias, sharing its weights."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x: Float[Tensor, "*N I"]) -> Float[Tensor, "*N O"]:
        return linear(x, self.weight, self.bias)


def use_triton_linear(model: nn.Module) -> None:
    """Replace every `nn.Linear` that has a bias."""
    replace_modules(model, nn.Linear, lambda layer: layer if layer.bias is None else TritonLinear(layer))


class _LinearFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        rows = grad_out.flatten(0, -2)
        return grad_out @ weight, rows.t() @ x.flatten(0, -2), _column_sums(rows)


@torch.library.custom_op("heed::column_sums", mutates_args=())
def _column_sums(x: Tensor) -> Tensor:
    return column_sums(x)


@_column_sums.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[1])
