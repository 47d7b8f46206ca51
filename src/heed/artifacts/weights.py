"""Reads a model's weights from an untrusted safetensors file, after checking its header against the settings.

Enters: a file, possibly written by others, and a `ModelConfig`. Leaves: numpy arrays with the expected names, shapes
and dtypes, all finite; anything else is a `FolderError`. Knows nothing of torch: tensors.py makes tensors of them.

A safetensors file is 8 bytes with the length of its header, the header (JSON: name, dtype, shape and offsets of every
tensor) and the tensors' bytes. All of a model's shapes follow from its settings, so a file that does not match is
rejected by its header alone, before memory is allocated, whatever sizes the settings or the header claim.
"""

import math
import os
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heed.artifacts.quantization import SCALES, is_quantized_matrix
from heed.artifacts.shapes import weight_count, weight_shapes
from heed.config import ModelConfig
from heed.errors import FolderError
from heed.untrusted import open_regular, parse_json, reason, short_repr

FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_INTEGERS = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "U64": 8, "I64": 8}
_ITEM_SIZES = {**FLOATS, **_INTEGERS, "F8_E4M3": 1, "F8_E5M2": 1}
_MAX_HEADER = 4 << 20  # bytes: enough for over a thousand layers
_MAX_SIZE = 2**28  # of any dimension in the settings: the bytes of a matrix then fit into int64
_NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I8": "i1"}  # the dtypes of a model's weights


class TensorInfo(NamedTuple):
    """One tensor in a safetensors header."""

    dtype: str
    shape: tuple[int, ...]
    offset: int  # of its first byte, after the header


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The header of a safetensors file; raises unless its tensors cover every byte of the file exactly once."""
    try:
        with open_regular(path) as file:
            return _header(file, path)
    except (OSError, ValueError) as error:
        raise FolderError(f"{path} cannot be read: {reason(error)}") from None


def _header(file: BufferedReader, path: Path) -> dict[str, TensorInfo]:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    header = file.read(length) if 2 <= length <= min(size - 8, _MAX_HEADER) else b""
    if not header:
        problem = f"its header has {length:,} bytes, the file {size:,}; at most {_MAX_HEADER:,} are read"
        raise FolderError(f"{path} cannot be read: {problem}")
    return _parse_header(parse_json(header), size - 8 - length)


def _parse_header(header: Any, size: int) -> dict[str, TensorInfo]:
    if not isinstance(header, dict):
        raise ValueError(f"its header is {short_repr(header)}, not an object")  # noqa: TRY004 - of a file, not of an argument
    spans, entries = [], {}
    for name, fields in header.items():
        if name == "__metadata__":
            continue
        match fields:
            case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(begin), int(end)]} if (
                len(fields) == 3
                and dtype in _ITEM_SIZES
                and all(type(size) is int and 0 <= size < 2**48 for size in shape)
            ):
                if len(shape) > 8 or end - begin != math.prod(shape) * _ITEM_SIZES[dtype]:
                    raise ValueError(
                        f"its tensor {short_repr(name)} has {end - begin:,} bytes, which does not match its shape"
                    )
                spans.append((begin, end))
                entries[name] = TensorInfo(dtype, tuple(shape), begin)
            case _:
                raise ValueError(f"its tensor {short_repr(name)} is described as {short_repr(fields)}")
    previous_end = 0
    for begin, end in sorted(spans):
        if begin != previous_end:
            raise ValueError("its tensors overlap or leave a gap")
        previous_end = end
    if previous_end != size:
        raise ValueError(f"its tensors have {previous_end:,} bytes in its header, but {size:,} in the file")
    return entries


def check_sizes(config: ModelConfig, path: Path) -> None:
    """Reject sizes that no model can have, before anything multiplies them."""
    for name, value in config.model_dump().items():
        if type(value) is int and value > _MAX_SIZE:
            raise FolderError(f"{path}: {name} = {value} is more than the maximum, {_MAX_SIZE:,}")


def check_weights(
    config: ModelConfig, header: Mapping[str, TensorInfo], path: Path, *, quantized: bool = False
) -> None:
    """Check that a header has exactly the model's weights, each with the right shape and dtype."""
    if (count := weight_count(config)) > len(header) + 1000:  # if only a few are missing, the first is named
        raise FolderError(f"{path} has {len(header)} tensors, but the settings require {count:,} weights")
    expected = weight_shapes(config)
    required: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {}
    for name, shape in expected.items():
        required[name] = (shape, tuple(FLOATS))
        if quantized and is_quantized_matrix(name, len(shape)):
            required[name] = (shape, ("I8",))
            required[name + SCALES] = (shape[:1], tuple(FLOATS))
    for name in sorted(required.keys() | header.keys()):
        expectation, tensor = required.get(name), header.get(name)
        if expectation is None or tensor is None or expectation[0] != tensor.shape:
            expected_shape = expectation[0] if expectation else "none"
            shapes = f"{tensor.shape if tensor else 'none'}, but the settings require {expected_shape}"
            raise FolderError(f"{path}: weight {short_repr(name)} has shape {shapes}")
        if tensor.dtype not in expectation[1]:
            dtypes = " or ".join(expectation[1])
            raise FolderError(f"{path}: weight {name} has dtype {tensor.dtype}, expected {dtypes}")


def read_weights(path: Path) -> dict[str, NDArray[Any]]:
    """All weights of a safetensors file; raises unless finite. Only an output bias may be -inf, to ban a token."""
    weights = {}
    try:
        with open_regular(path) as file:
            header = _header(file, path)
            start = file.tell()
            for name, tensor in header.items():
                if tensor.dtype not in _NUMPY:
                    raise FolderError(f"{path}: weight {short_repr(name)} has dtype {tensor.dtype}")
                file.seek(start + tensor.offset)
                weights[name] = _array(file, tensor)
                _check_finite(name, weights[name], path)
    except (OSError, ValueError) as error:
        raise FolderError(f"{path} cannot be read: {reason(error)}") from None
    except MemoryError:
        raise FolderError(f"{path} cannot be read: it does not fit into memory") from None
    return weights


def _array(file: BufferedReader, tensor: TensorInfo) -> NDArray[Any]:
    """The next tensor of a file; bfloat16, which numpy does not have, as float32."""
    array: NDArray[Any] = np.fromfile(file, _NUMPY[tensor.dtype], math.prod(tensor.shape))
    if tensor.dtype == "BF16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.reshape(tensor.shape)


def _check_finite(name: str, weight: NDArray[Any], path: Path) -> None:
    """Raise unless a weight is finite; an output bias may be -inf."""
    if weight.dtype.kind == "f" and weight.size:
        low, high = float(weight.min()), float(weight.max())
        may_ban = name in ("vocabulary.bias", "vocabulary.output.bias")
        if not math.isfinite(high) or not (math.isfinite(low) or may_ban):
            raise FolderError(f"{path}: weight {name} is not finite ({low} to {high})")
