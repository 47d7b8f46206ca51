"""Reads a model's weights from an untrusted safetensors file, after checking its header against the settings.

Enters: a file, possibly written by others, and a `ModelConfig`. Leaves: tensors with the expected names, shapes and
dtypes, all finite; anything else is a `FolderError`.

A safetensors file is 8 bytes with the length of its header, the header (JSON: name, dtype, shape and offsets of every
tensor) and the tensors' bytes. All of a model's shapes follow from its settings, so a file that does not match is
rejected by its header alone, before memory is allocated, whatever sizes the settings or the header claim.
"""

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from heed.artifacts.manifest import physical_memory
from heed.artifacts.quantization import SCALES, is_quantized_matrix
from heed.config import ModelConfig
from heed.errors import FolderError
from heed.model.transformer import Transformer, meta_model
from heed.untrusted import open_regular, parse_json, read_regular, reason, short_repr

FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_INTEGERS = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "U64": 8, "I64": 8}
_ITEM_SIZES = {**FLOATS, **_INTEGERS, "F8_E4M3": 1, "F8_E5M2": 1}
_MAX_HEADER = 4 << 20  # bytes: enough for over a thousand layers
_MAX_SIZE = 2**28  # of any dimension in the settings: the bytes of a matrix then fit into int64
_LAYER = re.compile(r"(encoder|decoder)\.layers\.0\.")


class TensorInfo(NamedTuple):
    """One tensor in a safetensors header."""

    dtype: str
    shape: tuple[int, ...]


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The header of a safetensors file; raises unless its tensors cover every byte of the file exactly once."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            header = file.read(length) if 2 <= length <= min(size - 8, _MAX_HEADER) else b""
            if not header:
                problem = f"its header has {length:,} bytes, the file {size:,}; at most {_MAX_HEADER:,} are read"
                raise FolderError(f"{path} cannot be read: {problem}")
        return _parse_header(parse_json(header), size - 8 - length)
    except (OSError, ValueError) as error:
        raise FolderError(f"{path} cannot be read: {reason(error)}") from None


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
                entries[name] = TensorInfo(dtype, tuple(shape))
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


def weight_shapes(config: ModelConfig, limit: int) -> dict[str, tuple[int, ...]] | int:
    """The shape of every weight of a model, from its settings; if there are more than `limit`, only their number."""
    one_layer = meta_model(config.model_copy(update={"encoder_layers": 1, "decoder_layers": 1}))
    layers = {"encoder": config.encoder_layers, "decoder": config.decoder_layers}
    shapes = {name: tuple(weight.shape) for name, weight in one_layer.state_dict().items()}
    stacks = {name: layers[match[1]] for name in shapes if (match := _LAYER.match(name))}
    if (count := len(shapes) - len(stacks) + sum(stacks.values())) > limit:
        return count
    return {
        name.replace(".layers.0.", f".layers.{number}.", 1): shape
        for name, shape in shapes.items()
        for number in range(stacks.get(name, 1))
    }


def check_weights(
    config: ModelConfig, header: Mapping[str, TensorInfo], path: Path, *, quantized: bool = False
) -> None:
    """Check that a header has exactly the model's weights, each with the right shape and dtype."""
    expected = weight_shapes(config, limit=len(header) + 1000)  # if only a few are missing, the first is named
    if isinstance(expected, int):
        raise FolderError(f"{path} has {len(header)} tensors, but the settings require {expected:,} weights")
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


def read_tensors(path: Path) -> dict[str, Tensor]:
    read_header(path)
    try:
        return load(read_regular(path, physical_memory()))
    except (OSError, ValueError) as error:
        raise FolderError(f"{path} cannot be read: {reason(error)}") from None
    except (SafetensorError, MemoryError) as error:
        raise FolderError(f"{path} cannot be read: {error or 'it does not fit into memory'}") from None


def read_finite_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file; raises unless finite. Only an output bias may be -inf, to ban a token."""
    tensors = read_tensors(path)
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.numel():
            low, high = (float(bound) for bound in tensor.aminmax())
            if not math.isfinite(high) or not (
                math.isfinite(low) or name in ("vocabulary.bias", "vocabulary.output.bias")
            ):
                raise FolderError(f"{path}: weight {name} is not finite ({low} to {high})")
    return tensors


def load_weights(model: Transformer, weights: Mapping[str, Tensor], path: Path) -> None:
    """Load weights into a model; raises unless names and shapes match."""
    expected = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    actual = {name: tuple(weight.shape) for name, weight in weights.items()}
    for name in sorted(expected.keys() | actual.keys()):
        if expected.get(name) != actual.get(name):
            shapes = f"{actual.get(name, 'none')}, but the settings require {expected.get(name, 'none')}"
            raise FolderError(f"{path}: weight {name} has shape {shapes}")
    model.load_state_dict(dict(weights))
