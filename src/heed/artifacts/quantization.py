"""Weights in int8, each row with a scale of its own; a model folder to one with such weights."""

from collections.abc import Mapping
from pathlib import Path

import torch
from jaxtyping import Float, Int8
from safetensors.torch import save
from torch import Tensor

from heed.artifacts.card import read_card, without_scores
from heed.artifacts.folder import WEIGHTS, model_files, read_model_folder
from heed.artifacts.writing import ROUNDED, write_folder
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


def write_rounded(path: Path, out: Path) -> tuple[int, int]:
    """Round the weights of the model folder `path` into the folder `out`; returns the bytes of both."""
    if out.exists():
        raise FolderError(f"{out} is already there: choose another --out")
    folder = read_model_folder(path)
    kind = folder.run.model.kind
    if kind != "encoder-decoder":
        raise FolderError(f"{path} has kind = {kind!r}: integers of 8 bits are for models that translate")
    weights = folder.weights()
    card = without_scores(read_card(path))
    card += (
        "\nIts weights were rounded to integers of 8 bits by `heed quantize`; scores measured before that may differ.\n"
    )
    files = model_files(weights, folder.run, {**folder.trained, "quantized": "int8"}, folder.tokenizers, card)
    whole = len(files.pop(WEIGHTS))
    files[ROUNDED] = save({name: weight.contiguous() for name, weight in in_integers(weights).items()})
    write_folder(out, files)
    return whole, len(files[ROUNDED])
