"""Symmetric int8 quantisation of weights: every matrix as integers in [-127, 127] with a float scale per row.

Enters: a model's weights by name, as numpy arrays. Leaves: the same with each matrix in int8 and its `name.scales`, as
stored in `model.int8.safetensors`; or the dequantised float32 weights. Knows nothing of files or int8 kernels, nor of
torch.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heed.errors import FolderError

SCALES = ".scales"
_MAX_INT8 = 127
_SMALLEST = np.float32(1e-12)  # of a row's largest absolute value: a row of zeros has a scale too


class QuantizedMatrix(NamedTuple):
    """A matrix in int8, and the scale of each row."""

    integers: NDArray[np.int8]  # (rows, columns)
    scales: NDArray[np.float32]  # (rows)


def row_scales(weight: NDArray[Any]) -> NDArray[np.float32]:
    """The quantisation scale of each row of a matrix: its largest absolute value over 127."""
    return np.maximum(np.abs(weight.astype(np.float32, copy=False)).max(1), _SMALLEST) / np.float32(_MAX_INT8)


def quantize_rows(weight: NDArray[Any]) -> QuantizedMatrix:
    """A matrix quantised to int8, and the scale of each row."""
    scales = row_scales(weight)
    with np.errstate(invalid="ignore"):  # NaN is no integer; its scale stays NaN
        integers = np.clip(np.rint(weight / scales[:, None]), -_MAX_INT8, _MAX_INT8).astype(np.int8)
    return QuantizedMatrix(integers, scales)


def scaled(matrix: QuantizedMatrix, factor: float) -> QuantizedMatrix:
    """A quantised matrix times a factor: to the bit what quantising the dequantised, multiplied matrix gives.

    A row whose largest integer is 127, as `quantize_rows` writes it, keeps its integers. Others are quantised again.
    """
    integers, scales = matrix
    largest = np.maximum(integers.max(1), -integers.min(1).astype(np.int16)).astype(np.float32)
    bounds = largest * scales * np.float32(factor)
    if bool(((largest == 0) | ((largest == _MAX_INT8) & (bounds > _SMALLEST))).all()):
        return QuantizedMatrix(integers, np.maximum(bounds, _SMALLEST) / np.float32(_MAX_INT8))
    return quantize_rows(dequantize(matrix) * np.float32(factor))


def dequantize(matrix: QuantizedMatrix) -> NDArray[np.float32]:
    """The float32 matrix that a quantised one stands for, up to rounding."""
    return matrix.integers.astype(np.float32) * matrix.scales[:, None]


def is_quantized_matrix(name: str, dimensions: int) -> bool:
    """Whether a weight is stored in int8: all matrices except learned positions."""
    return dimensions == 2 and not name.endswith("positions.table.weight")


def quantize_weights(weights: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """A model's weights with its matrices in int8 and their scales."""
    quantized: dict[str, NDArray[Any]] = {}
    for name, weight in weights.items():
        if is_quantized_matrix(name, weight.ndim):
            quantized[name], quantized[name + SCALES] = quantize_rows(weight)
        else:
            quantized[name] = weight
    return quantized


def stored_matrix(weights: Mapping[str, NDArray[Any]], name: str) -> QuantizedMatrix:
    """An int8 matrix and its scales, of the weights that a quantised model folder stores."""
    integers, scales = weights[name], weights.get(name + SCALES)
    if scales is None or scales.shape != integers.shape[:1]:
        shape = "none" if scales is None else scales.shape
        raise FolderError(f"weight {name} of shape {integers.shape} needs a scale for each row, found {shape}")
    return QuantizedMatrix(integers, scales.astype(np.float32, copy=False))


def dequantize_weights(weights: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The inverse of `quantize_weights`, up to rounding, in float32."""
    floats = {}
    for name, weight in weights.items():
        if weight.dtype == np.int8:
            floats[name] = dequantize(stored_matrix(weights, name))
        elif name.removesuffix(SCALES) not in weights or name == name.removesuffix(SCALES):
            floats[name] = weight
    return floats
