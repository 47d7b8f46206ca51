"""Linear layers for inference on a CPU, x Wᵀ + b, with W prepared once: by oneDNN in float32, by fbgemm in int8.

A decoder step multiplies few rows with large matrices, so it lasts as long as reading the matrices. MKL reads them with
one core where there is one row, and repacks them at every call where there are more; oneDNN takes a matrix that was
packed once, and all cores read it: two to five times as fast for the matrices of the paper's base model. It costs a
second copy of each matrix.

In int8 each row of W has a scale of its own, its largest number over 127, and x is scaled as it comes. Only matmuls
change: embeddings, positions, norms, softmax and sums stay float32. The reference of all is
`torch.nn.functional.linear`; how far int8 is from it is measured in BLEU.
"""

import warnings
from collections.abc import Callable
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from heed.artifacts.quantization import row_scales

LinearFn: TypeAlias = Callable[[Tensor], Tensor]  # x Wᵀ + b of any rows x
MakeLinear: TypeAlias = Callable[[Tensor, Tensor | None], LinearFn]  # from W and b

_SMALL = 2**17  # numbers of a matrix below which the call costs more than the reading


def plain_linear(weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, "outputs"] | None) -> LinearFn:
    """By torch, with the matrix as it is."""
    weight, bias = weight.detach(), None if bias is None else bias.detach()
    return lambda x: functional.linear(x, weight, bias)


def prepacked_linear(weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, "outputs"] | None) -> LinearFn:
    """By oneDNN, with a packed copy of the matrix; a small one is left as it is."""
    if weight.numel() < _SMALL or weight.dtype != torch.float32:
        return plain_linear(weight, bias)
    packed, bias = torch.ops.mkldnn._reorder_linear_weight(weight.detach()), None if bias is None else bias.detach()
    multiply = torch.ops.mkldnn._linear_pointwise.default._op  # the dispatcher takes as long as a small matmul
    return lambda x: multiply(x, packed, bias, "none", [], "")


def int8_linear(*, reduce_range: bool) -> MakeLinear:
    """By fbgemm. reduce_range: x in 7 bits, for CPUs without VNNI, whose 16-bit sums would overflow."""

    def make(weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, "outputs"] | None) -> LinearFn:
        torch.backends.quantized.engine = "fbgemm"
        scales = row_scales(weight).double()
        zeros = torch.zeros(len(weight), dtype=torch.int64, device="cpu")
        with warnings.catch_warnings():
            # Such tensors are deprecated; nothing else is as fast yet.
            warnings.simplefilter("ignore", UserWarning)
            quantised = torch.quantize_per_channel(weight.detach(), scales, zeros, 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(quantised, None if bias is None else bias.detach())
        multiply = torch.ops.quantized.linear_dynamic.default._op  # the dispatcher takes as long as a small matmul
        return lambda x: multiply(x, packed, reduce_range)

    return make
