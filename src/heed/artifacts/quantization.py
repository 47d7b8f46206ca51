"""Symmetric int8 quantisation of weights: every matrix as integers in [-127, 127] with a float scale per row.

Enters: a model's weights by name. Leaves: the same with each matrix in int8 and its `name.scales`, as stored in
`model.int8.safetensors`; or the dequantised float32 weights. Knows nothing of files or int8 kernels.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int8
from torch import Tensor

from heed.errors import FolderError

SCALES = ".scales"
_MAX_INT8 = 127


def row_scales(weight: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows"]:
    """The quantisation scale of each row: its largest absolute value over 127."""
    return weight.detach().float().abs().amax(1).clamp(min=1e-12) / _MAX_INT8


def quantize_rows(weight: Float[Tensor, "rows columns"]) -> tuple[Int8[Tensor, "rows columns"], Float[Tensor, "rows"]]:
    """A matrix quantised to int8, and the scale of each row."""
    scales = row_scales(weight)
    return (weight.detach() / scales[:, None]).round().clamp(-_MAX_INT8, _MAX_INT8).to(torch.int8), scales


def is_quantized_matrix(name: str, dimensions: int) -> bool:
    """Whether a weight is stored in int8: all matrices except learned positions."""
    return dimensions == 2 and not name.endswith("positions.table.weight")


def quantize_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A model's weights with its matrices in int8 and their scales."""
    quantized: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if is_quantized_matrix(name, weight.ndim):
            quantized[name], quantized[name + SCALES] = quantize_rows(weight)
        else:
            quantized[name] = weight
    return quantized


def dequantize_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `quantize_weights`, up to rounding, in float32."""
    floats = {}
    for name, weight in weights.items():
        if weight.dtype == torch.int8:
            scales = weights.get(name + SCALES)
            if scales is None or scales.shape != weight.shape[:1]:
                shape = "none" if scales is None else tuple(scales.shape)
                raise FolderError(
                    f"weight {name} of shape {tuple(weight.shape)} needs a scale for each row, found {shape}"
                )
            floats[name] = weight.float() * scales[:, None]
        elif name.removesuffix(SCALES) not in weights or name == name.removesuffix(SCALES):
            floats[name] = weight
    return floats
