"""Linear layers for inference on a CPU with prepacked weights: oneDNN in float32, fbgemm in int8.

A decoder step multiplies few rows with large matrices, so it is bound by reading the matrices. MKL reads them with one
core for a single row, and repacks them in every call for more rows; oneDNN packs a matrix once, and all cores read it:
two to five times as fast for the matrices of the paper's base model, at the cost of a second copy of each matrix.

In int8 each row of W has its own scale, its largest absolute value over 127, and x is quantised dynamically. Only
matmuls change: embeddings, positions, norms, softmax and sums stay float32. The reference is
`torch.nn.functional.linear`; the loss of quality in int8 is measured in BLEU.
"""

import warnings
from collections.abc import Callable
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from heed.artifacts.quantization import row_scales
from heed.backends.cpu.packed_linear import PackedLinear

LinearFn: TypeAlias = Callable[[Tensor], Tensor]  # x to x Wᵀ + b
MakeLinear: TypeAlias = Callable[[Tensor, Tensor | None], LinearFn]  # from W and b

_MIN_PREPACKED = 2**17  # elements of a matrix; below, the overhead of the call dominates


def plain_linear(weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, "outputs"] | None) -> LinearFn:
    """`torch.nn.functional.linear`, without a copy of the weight."""
    weight, bias = weight.detach(), None if bias is None else bias.detach()
    return lambda x: functional.linear(x, weight, bias)


def prepacked_linear(weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, "outputs"] | None) -> LinearFn:
    """oneDNN with a packed copy of the weight; torch for small matrices and other dtypes."""
    if weight.numel() < _MIN_PREPACKED or weight.dtype != torch.float32:
        return plain_linear(weight, bias)
    packed, bias = torch.ops.mkldnn._reorder_linear_weight(weight.detach()), None if bias is None else bias.detach()
    multiply = torch.ops.mkldnn._linear_pointwise.default._op  # the dispatcher takes as long as a small matmul
    return lambda x: multiply(x, packed, bias, "none", [], "")


def int8_linear(*, reduce_range: bool) -> MakeLinear:
    """fbgemm. reduce_range: x in 7 bits, for CPUs without VNNI, whose 16-bit sums would overflow."""

    def make(weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, "outputs"] | None) -> LinearFn:
        torch.backends.quantized.engine = "fbgemm"
        scales = torch.from_numpy(row_scales(weight.detach().float().numpy())).double()
        zeros = torch.zeros(len(weight), dtype=torch.int64, device="cpu")
        with warnings.catch_warnings():
            # Quantised tensors are deprecated, but nothing else is as fast yet.
            warnings.simplefilter("ignore", UserWarning)
            quantized = torch.quantize_per_channel(weight.detach(), scales, zeros, 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(quantized, None if bias is None else bias.detach())
        multiply = torch.ops.quantized.linear_dynamic.default._op  # the dispatcher takes as long as a small matmul
        return lambda x: multiply(x, packed, reduce_range)

    return make


def compiled_linear(
    weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, "outputs"] | None, *, int8: bool
) -> LinearFn:
    """heed's compiled code, with a packed copy of the weight."""
    packed = PackedLinear(weight.detach().numpy(), None if bias is None else bias.detach().numpy(), int8=int8)
    return lambda x: call_packed(packed, x)


def call_packed(packed: PackedLinear, x: Float[Tensor, "*tokens inputs"]) -> Float[Tensor, "*tokens outputs"]:
    """x Wᵀ + b in compiled code."""
    return torch.from_numpy(packed(x.detach().numpy()))
