"""Weights in int8: each row of a matrix with a scale of its own, its largest number over 127."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int8
from torch import Tensor

from heed.errors import FolderError

SCALES = ".scales"
_LARGEST = 127


def row_scales(weight: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows"]:
    """What one step of each row's integers is worth."""
    return weight.detach().float().abs().amax(1).clamp(min=1e-12) / _LARGEST


def rounded(weight: Float[Tensor, "rows columns"]) -> tuple[Int8[Tensor, "rows columns"], Float[Tensor, "rows"]]:
    """A matrix as integers, and the scale of each row."""
    scales = row_scales(weight)
    return (weight.detach() / scales[:, None]).round().clamp(-_LARGEST, _LARGEST).to(torch.int8), scales


def is_rounded_matrix(name: str, dimensions: int) -> bool:
    """Whether a weight is kept as integers: matrices are, but tables of positions are not."""
    return dimensions == 2 and not name.endswith("positions.table.weight")


def in_integers(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A model's weights with its matrices rounded."""
    found: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if is_rounded_matrix(name, weight.ndim):
            found[name], found[name + SCALES] = rounded(weight)
        else:
            found[name] = weight
    return found


def in_floats(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same weights as a model takes them: integers times scales."""
    found = {}
    for name, weight in weights.items():
        if weight.dtype == torch.int8:
            scales = weights.get(name + SCALES)
            if scales is None or scales.shape != weight.shape[:1]:
                shape = "none" if scales is None else tuple(scales.shape)
                raise FolderError(
                    f"weight {name} of shape {tuple(weight.shape)} needs a scale for each row, found {shape}"
                )
            found[name] = weight.float() * scales[:, None]
        elif name.removesuffix(SCALES) not in weights or name == name.removesuffix(SCALES):
            found[name] = weight
    return found
