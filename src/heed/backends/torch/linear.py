"""x Wᵀ + b on a CPU, with W laid out beforehand as the processor likes to read it.

A step of decoding multiplies few rows with large matrices, so it lasts as long as reading the matrices. MKL reads them
with one core where there is one row, and lays them out anew at every call where there are more; oneDNN takes a matrix
that was laid out once, and all cores read it: two to five times as fast for the matrices of the paper's base model. It
costs a second copy of each matrix. The twin is `torch.nn.functional.linear`.
"""

import platform
from collections.abc import Callable
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

Product: TypeAlias = Callable[[Tensor], Tensor]  # x Wᵀ + b of any rows x
Multiply: TypeAlias = Callable[[Tensor, Tensor | None], Product]  # from W and b

_SMALL = 2**17  # numbers of a matrix below which the call costs more than the reading


def product(weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, "outputs"] | None) -> Product:
    """The quicker of the two."""
    worth_it = weight.numel() >= _SMALL and weight.dtype == torch.float32
    return laid_out(weight, bias) if worth_it and can_be_laid_out() else plain(weight, bias)


def can_be_laid_out() -> bool:
    """Whether oneDNN is there, and tried for this on such a processor."""
    return torch.backends.mkldnn.is_available() and platform.machine() in ("x86_64", "AMD64")


def plain(weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, "outputs"] | None) -> Product:
    """By torch, with the matrix as it is."""
    weight, bias = weight.detach(), None if bias is None else bias.detach()
    return lambda x: functional.linear(x, weight, bias)


def laid_out(weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, "outputs"] | None) -> Product:
    """By oneDNN, with a copy of the matrix in the order in which it is read."""
    ready, bias = torch.ops.mkldnn._reorder_linear_weight(weight.detach()), None if bias is None else bias.detach()
    multiply = torch.ops.mkldnn._linear_pointwise.default._op  # what is around it takes as long as a small product
    return lambda x: multiply(x, ready, bias, "none", [], "")
