"""A model's weights in a safetensors file: compared with the settings by its header, then read and put into a model.

Enters: a file that somebody else may have written, and a `ModelConfig`. Leaves: tensors of the right names, shapes and
dtypes, all finite; anything else is a `FolderError`.

A safetensors file is 8 bytes with the length of its header, the header (JSON: name, dtype, shape and offsets of every
tensor) and the tensors' bytes. All of a model's shapes follow from its settings, so a file that does not fit is refused
by its header alone, before memory is taken, whatever sizes the settings or the header claim.
"""

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from heed.artifacts.manifest import memory_of_this_machine
from heed.artifacts.quantization import SCALES, is_quantized_matrix
from heed.config import ModelConfig
from heed.errors import FolderError
from heed.model.transformer import Transformer
from heed.untrusted import open_regular, parse_json, read_regular, reason, short_repr

FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_INTEGERS = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "U64": 8, "I64": 8}
_BYTES = {**FLOATS, **_INTEGERS, "F8_E4M3": 1, "F8_E5M2": 1}
_LARGEST_HEADER = 4 << 20  # bytes: over a thousand layers
_LARGEST_SIZE = 2**28  # of anything that the settings count: the product of two, in bytes, is still an int64
_LAYER = re.compile(r"(encoder|decoder)\.layers\.0\.")


class Entry(NamedTuple):
    """What a header says of one tensor."""

    dtype: str
    shape: tuple[int, ...]


def read_header(path: Path) -> dict[str, Entry]:
    """The header of a safetensors file, if it describes every byte of the file once."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            header = file.read(length) if 2 <= length <= min(size - 8, _LARGEST_HEADER) else b""
            if not header:
                problem = f"its header has {length:,} bytes, the file {size:,}; at most {_LARGEST_HEADER:,} are read"
                raise FolderError(f"{path} cannot be read: {problem}")
        return _entries(parse_json(header), size - 8 - length)
    except (OSError, ValueError) as error:
        raise FolderError(f"{path} cannot be read: {reason(error)}") from None


def _entries(found: Any, size: int) -> dict[str, Entry]:
    if not isinstance(found, dict):
        raise ValueError(f"its header is {short_repr(found)}, not an object")  # noqa: TRY004 - of a file, not of an argument
    spans, entries = [], {}
    for name, fields in found.items():
        if name == "__metadata__":
            continue
        match fields:
            case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(begin), int(end)]} if (
                len(fields) == 3 and dtype in _BYTES and all(type(one) is int and 0 <= one < 2**48 for one in shape)
            ):
                if len(shape) > 8 or end - begin != math.prod(shape) * _BYTES[dtype]:
                    raise ValueError(f"its tensor {short_repr(name)} has {end - begin:,} bytes, which is not its shape")
                spans.append((begin, end))
                entries[name] = Entry(dtype, tuple(shape))
            case _:
                raise ValueError(f"its tensor {short_repr(name)} is described as {short_repr(fields)}")
    after = 0
    for begin, end in sorted(spans):
        if begin != after:
            raise ValueError("its tensors overlap or leave a gap")
        after = end
    if after != size:
        raise ValueError(f"its tensors have {after:,} bytes by its header, and {size:,} in the file")
    return entries


def check_sizes(config: ModelConfig, path: Path) -> None:
    """Refuse settings that no model can have, before anything multiplies them."""
    for name, value in config.model_dump().items():
        if type(value) is int and value > _LARGEST_SIZE:
            raise FolderError(f"{path}: {name} = {value} is more than {_LARGEST_SIZE:,}, the most that heed reads")


def shapes_of(config: ModelConfig, most: int) -> dict[str, tuple[int, ...]] | int:
    """The shape of every weight of a model, from its settings; if there are more than `most`, only how many."""
    with torch.device("meta"):  # no memory: only shapes
        one_layer = Transformer(config.model_copy(update={"encoder_layers": 1, "decoder_layers": 1}))
    layers = {"encoder": config.encoder_layers, "decoder": config.decoder_layers}
    shapes = {name: tuple(weight.shape) for name, weight in one_layer.state_dict().items()}
    stacks = {name: layers[found[1]] for name in shapes if (found := _LAYER.match(name))}
    if (count := len(shapes) - len(stacks) + sum(stacks.values())) > most:
        return count
    return {
        name.replace(".layers.0.", f".layers.{number}.", 1): shape
        for name, shape in shapes.items()
        for number in range(stacks.get(name, 1))
    }


def check_weights(config: ModelConfig, found: Mapping[str, Entry], path: Path, *, quantized: bool = False) -> None:
    """The file of a model's weights must have all of them and no others, each of the right shape and kind."""
    expected = shapes_of(config, most=len(found) + 1000)  # where a few are missing, one is named
    if isinstance(expected, int):
        raise FolderError(f"{path} has {len(found)} tensors, but the settings ask for {expected:,} weights")
    wanted: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {}
    for name, shape in expected.items():
        wanted[name] = (shape, tuple(FLOATS))
        if quantized and is_quantized_matrix(name, len(shape)):
            wanted[name] = (shape, ("I8",))
            wanted[name + SCALES] = (shape[:1], tuple(FLOATS))
    for name in sorted(wanted.keys() | found.keys()):
        asked, there = wanted.get(name), found.get(name)
        if asked is None or there is None or asked[0] != there.shape:
            shapes = f"{there.shape if there else 'none'}, but the settings ask for {asked[0] if asked else 'none'}"
            raise FolderError(f"{path}: weight {short_repr(name)} has shape {shapes}")
        if there.dtype not in asked[1]:
            raise FolderError(f"{path}: weight {name} is of type {there.dtype}, expected {' or '.join(asked[1])}")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file."""
    read_header(path)
    try:
        return load(read_regular(path, memory_of_this_machine()))
    except (OSError, ValueError) as error:
        raise FolderError(f"{path} cannot be read: {reason(error)}") from None
    except (SafetensorError, MemoryError) as error:
        raise FolderError(f"{path} cannot be read: {error or 'it does not fit into memory'}") from None


def read_finite(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, if they hold numbers; only the output's bias may rule a token out by -inf."""
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
    """Give a model its weights; every one must be there, and of the right shape."""
    expected = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    found = {name: tuple(weight.shape) for name, weight in weights.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            shapes = f"{found.get(name, 'none')}, but the settings ask for {expected.get(name, 'none')}"
            raise FolderError(f"{path}: weight {name} has shape {shapes}")
    model.load_state_dict(dict(weights))
