"""A model's weights as torch tensors: from an untrusted safetensors file, and into a model.

Enters: a file, or weights by name. Leaves: tensors by name, or a model with these weights; anything that does not fit
is a `FolderError`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from heed.artifacts.manifest import physical_memory
from heed.artifacts.quantization import dequantize_weights
from heed.artifacts.weights import read_header
from heed.config import ModelConfig
from heed.errors import FolderError
from heed.model.transformer import Transformer, meta_model
from heed.untrusted import read_regular, reason


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file."""
    read_header(path)
    try:
        return load(read_regular(path, physical_memory()))
    except (OSError, ValueError) as error:
        raise FolderError(f"{path} cannot be read: {reason(error)}") from None
    except (SafetensorError, MemoryError) as error:
        raise FolderError(f"{path} cannot be read: {error or 'it does not fit into memory'}") from None


def as_tensors(weights: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """Arrays as tensors that share their memory."""
    return {name: torch.from_numpy(weight) for name, weight in weights.items()}


def model_of(config: ModelConfig, weights: Mapping[str, NDArray[Any]], path: Path) -> Transformer:
    """A model with weights as a model folder stores them, in evaluation mode. path: of the file, for errors."""
    model = meta_model(config).float().to_empty(device="cpu")  # no random initialisation
    load_weights(model, as_tensors(dequantize_weights(weights)), path)
    return model.eval()


def load_weights(model: Transformer, weights: Mapping[str, Tensor], path: Path) -> None:
    """Load weights into a model; raises unless names and shapes match."""
    expected = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    actual = {name: tuple(weight.shape) for name, weight in weights.items()}
    for name in sorted(expected.keys() | actual.keys()):
        if expected.get(name) != actual.get(name):
            shapes = f"{actual.get(name, 'none')}, but the settings require {expected.get(name, 'none')}"
            raise FolderError(f"{path}: weight {name} has shape {shapes}")
    model.load_state_dict(dict(weights))
