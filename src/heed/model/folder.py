"""A model on disk: a folder that is whole or absent.

    config.json          the model's settings, and how it was trained
    model.safetensors    its weights; model.int8.safetensors where they are rounded (rounded.py)
    tokenizer.json       the (target) vocabulary; source_tokenizer.json where the source has its own
    README.md            the model card
    manifest.json        the sha256 of each file and the format's version; written last

How it is written, so that a crash at any moment leaves the old model or the new one, is in writing.py. Reading checks
every byte against the manifest first. No pickle anywhere: safetensors and JSON only. Knows nothing of training.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from heed.config import RunConfig
from heed.errors import FolderError
from heed.model.rounded import ROUNDED, in_floats
from heed.model.transformer import Transformer
from heed.model.writing import EXPORTED, FORMAT, MANIFEST, as_json, current
from heed.text.tokenizer import Tokenizer

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class ModelFolder:
    """What a model folder holds, all but the weights."""

    path: Path
    run: RunConfig
    trained: dict[str, Any]  # how: data, steps, scores
    tokenizers: tuple[Tokenizer, Tokenizer]  # source and target

    def settings(self) -> dict[str, dict[str, Any]]:
        """The settings that a run starting from this model shares with it."""
        shape = self.run.model.model_dump(exclude={"vocab_size", "source_vocab_size", "labels", "kind"})
        shared = ("tokenizer", "separate_vocabularies")
        return {"model": shape, "data": {name: getattr(self.run.data, name) for name in shared}}

    def model(self) -> Transformer:
        """The model with its weights, on the CPU, ready to use."""
        model = Transformer(self.run.model)
        weights = (
            in_floats(read_tensors(self.path / ROUNDED)) if is_rounded(self.path) else read_tensors(self.path / WEIGHTS)
        )
        put_weights(model, weights, self.path)
        return model.eval()


def is_rounded(path: Path) -> bool:
    """Whether a model folder's weights are integers of 8 bits."""
    return (path / ROUNDED).is_file()


def refuse_rounded(path: Path) -> None:
    """For what needs the weights as they were learnt."""
    if is_rounded(path):
        raise FolderError(
            f"{path} holds weights rounded to integers of 8 bits, which translate, score and can be looked into; to "
            "train further, average, export or quantize, give the model folder it was made from"
        )


def read_model_folder(path: Path) -> ModelFolder:
    """Open a model folder after checking it against its manifest."""
    path = current(path)
    verify(path)
    if (path / EXPORTED).is_file():
        raise FolderError(
            f"{path} is an exported model: heed translate opens it, by the engine it is for; give its model folder here"
        )
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    run = RunConfig.model_validate_json(
        json.dumps({name: config[name] for name in RunConfig.model_fields if name in config})
    )
    target = Tokenizer.load(path / "tokenizer.json", run.data.tokenizer)
    own = path / "source_tokenizer.json"
    source = Tokenizer.load(own, run.data.tokenizer) if own.exists() else target
    return ModelFolder(path, run, config["trained"], (source, target))


def model_files(
    weights: Mapping[str, Tensor],
    run: RunConfig,
    trained: Mapping[str, Any],
    tokenizers: tuple[Tokenizer, Tokenizer],
    card: str,
) -> dict[str, bytes]:
    """The files of a model folder, by name."""
    source, target = tokenizers
    settings = {**run.model_dump(mode="json"), "trained": dict(trained)}
    files = {
        "config.json": as_json(settings),
        "model.safetensors": save({name: weight.contiguous() for name, weight in weights.items()}),
        "tokenizer.json": target.to_json().encode(),
        "README.md": card.encode(),
    }
    if source is not target:
        files["source_tokenizer.json"] = source.to_json().encode()
    return files


def verify(path: Path) -> None:
    """Every file that the manifest names must be there, byte for byte."""
    path = current(path)
    manifest = path / MANIFEST
    if not manifest.is_file():
        unfinished = (path / "checkpoints").is_dir()
        hint = "; the run is not finished: resume it, or use one of its checkpoints" if unfinished else ""
        raise FolderError(f"{path} is not a model folder: it has no {MANIFEST}{hint}")
    try:
        found = json.loads(manifest.read_text(encoding="utf-8"))
        version, sums = found["format"], dict(found["sha256"])
    except (ValueError, KeyError, TypeError) as error:
        raise FolderError(f"{manifest} is damaged: {error!r}") from None
    if version != FORMAT:
        raise FolderError(f"{path} has format {version}, and this heed reads format {FORMAT}: update heed")
    for name, expected in sums.items():
        file = path / name
        if Path(name).name != name or not file.is_file():
            raise FolderError(f"{path} is damaged: {name} is missing")
        with file.open("rb") as content:
            if hashlib.file_digest(content, "sha256").hexdigest() != expected:
                raise FolderError(f"{path} is damaged: {name} is not what {MANIFEST} says")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file."""
    if path.name == WEIGHTS:
        refuse_rounded(path.parent)
    try:
        return load(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise FolderError(f"{path} cannot be read: {error}") from None


def put_weights(model: Transformer, weights: Mapping[str, Tensor], path: Path) -> None:
    """Give a model its weights; every one must be there, and of the right shape."""
    expected = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    found = {name: tuple(weight.shape) for name, weight in weights.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            shapes = f"{found.get(name, 'none')}, but the settings ask for {expected.get(name, 'none')}"
            raise FolderError(f"{path}: weight {name} has shape {shapes}")
    model.load_state_dict(dict(weights))
