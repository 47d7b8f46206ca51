"""Weights in int8: every matrix as integers from -127 to 127 with a float scale per row.

Enters: a model's weights by name. Leaves: the same with each matrix as int8 and `name.scales` beside it, as they lie in
`model.int8.safetensors`; or back in float32. Knows nothing of files, nor of the arithmetic that uses them.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int8
from torch import Tensor

from heed.errors import FolderError

SCALES = ".scales"
_LARGEST = 127


def row_scales(weight: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows"]:
    """The value of one integer step in each row: its largest absolute value over 127."""
    return weight.detach().float().abs().amax(1).clamp(min=1e-12) / _LARGEST


def quantize_rows(weight: Float[Tensor, "rows columns"]) -> tuple[Int8[Tensor, "rows columns"], Float[Tensor, "rows"]]:
    """A matrix as integers, and the scale of each row."""
    scales = row_scales(weight)
    return (weight.detach() / scales[:, None]).round().clamp(-_LARGEST, _LARGEST).to(torch.int8), scales


def is_quantized_matrix(name: str, dimensions: int) -> bool:
    """Whether a weight is stored as integers: matrices are, except the table of learned positions."""
    return dimensions == 2 and not name.endswith("positions.table.weight")


def quantize_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A model's weights with its matrices in int8 and their scales beside them."""
    quantized: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if is_quantized_matrix(name, weight.ndim):
            quantized[name], quantized[name + SCALES] = quantize_rows(weight)
        else:
            quantized[name] = weight
    return quantized


def dequantize_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights that `quantize_weights` wrote, in float32: integers times scales."""
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
