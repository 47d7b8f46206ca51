"""A model on disk: a folder that is whole or absent.

    config.json          the model's settings, and how it was trained
    model.safetensors    its weights; model.int8.safetensors where they are quantised (quantization.py)
    tokenizer.json       the (target) vocabulary; source_tokenizer.json where the source has its own
    README.md            the model card
    manifest.json        the sha256 of each file and the format's version; written last

Enters: a path. Leaves: a `ModelFolder`; or the other way round, a model's parts to the files of a folder (writing.py
writes them so that a crash leaves the old model or the new one). Reading opens only files that the manifest lists,
compares settings, tokenizers and the weights' header with one another, and checks every byte against the manifest, all
before a model is built. No pickle anywhere: safetensors and JSON only. Knows nothing of training.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from safetensors.torch import save
from torch import Tensor
from typing_extensions import TypedDict  # pydantic takes this one in Python 3.11

from heed.artifacts.manifest import MANIFEST, Listed, hugging_face
from heed.artifacts.quantization import dequantize_weights
from heed.artifacts.weights import check_sizes, check_weights, load_weights, read_finite, read_header
from heed.artifacts.writing import EXPORTED, INT8_WEIGHTS, as_json
from heed.config import RunConfig
from heed.errors import ConfigError, DataError, FolderError
from heed.model.torch_state import torch_defaults
from heed.model.transformer import Transformer
from heed.text.tokenizer import BOS, EOS, PAD, Tokenizer
from heed.untrusted import short_repr

CONFIG = "config.json"
TOKENIZER, SOURCE_TOKENIZER = "tokenizer.json", "source_tokenizer.json"
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

    @torch_defaults()
    def model(self) -> Transformer:
        """The model with its weights, on the CPU, ready to use."""
        weights = (
            dequantize_weights(read_finite(self.path / INT8_WEIGHTS)) if is_quantized(self.path) else self.weights()
        )
        with torch.device("meta"):  # random first weights would take time, and torch's global random state
            model = Transformer(self.run.model).float()
        model.to_empty(device="cpu")
        load_weights(model, weights, self.path)
        return model.eval()

    def weights(self) -> dict[str, Tensor]:
        """The weights as they were trained; quantised ones are refused."""
        refuse_quantized(self.path)
        return read_finite(self.path / WEIGHTS)


def is_quantized(path: Path) -> bool:
    """Whether a model folder's weights are int8."""
    return INT8_WEIGHTS in Listed.of(path)


def refuse_quantized(path: Path) -> None:
    """Refuse a quantised folder where the weights are needed as they were trained."""
    if is_quantized(path):
        raise FolderError(
            f"{path} holds weights quantised to int8, which translate, score and can be looked into; to "
            "train further, average, export or quantize, give the model folder it was made from"
        )


def read_model_folder(path: Path) -> ModelFolder:
    """Open a model folder, whoever wrote it, after checking its files against one another and its manifest."""
    listed = Listed.of(path)
    path = listed.path
    if EXPORTED in listed:
        raise FolderError(
            f"{path} is an exported model: heed translate opens it, by the engine it is for; give its model folder here"
        )
    config = listed.json(CONFIG)
    if "model" not in config and (hint := hugging_face(path, config)):
        raise FolderError(f"{path} is not a model folder: {hint}")
    trained = _trained(config.pop("trained", None), path / CONFIG)
    run = parse_settings(config, path / CONFIG)
    tokenizers = read_tokenizers(listed, run)
    weights = INT8_WEIGHTS if INT8_WEIGHTS in listed else WEIGHTS
    listed.require(weights)
    if weights == INT8_WEIGHTS and WEIGHTS in listed:
        raise FolderError(
            f"{path} is damaged: {MANIFEST} lists both {WEIGHTS} and {INT8_WEIGHTS}, expected one of them"
        )
    check_weights(run.model, read_header(path / weights), path / weights, quantized=weights == INT8_WEIGHTS)
    listed.verify()
    return ModelFolder(path, run, trained, tokenizers)


def parse_settings(config: Mapping[str, Any], path: Path) -> RunConfig:
    """The settings that a file of a folder holds."""
    try:
        run = RunConfig.model_validate_json(json.dumps(config))
    except ConfigError as error:
        raise FolderError(f"{path}: {error}") from None
    check_sizes(run.model, path)
    return run


def read_tokenizers(listed: Listed, run: RunConfig) -> tuple[Tokenizer, Tokenizer]:
    """The source's tokenizer and the target's, as the manifest lists them; they must fit the model."""

    def read(name: str) -> Tokenizer:
        try:
            return Tokenizer.from_json(listed.read(name), run.data.tokenizer)
        except DataError as error:
            raise FolderError(f"{listed.path / name}: {error}") from None

    target = read(TOKENIZER)
    source = read(SOURCE_TOKENIZER) if SOURCE_TOKENIZER in listed else target
    if run.model.source_vocab_size is not None:
        listed.require(SOURCE_TOKENIZER)
    check_tokenizers(run, (source, target), listed.path)
    return source, target


def check_tokenizers(run: RunConfig, tokenizers: tuple[Tokenizer, Tokenizer], path: Path) -> None:
    """The tokens must be the model's: as many, and with the special tokens where the tokenizer has them."""
    config = run.model
    sizes = ("", config.vocab_size), ("source ", config.source_vocab_size or config.vocab_size)
    for (side, size), tokenizer in zip(sizes, reversed(tokenizers), strict=True):
        if tokenizer.vocab_size != size:
            raise FolderError(
                f"{path}: the model has a {side}vocabulary of {size:,} tokens, but its {side}tokenizer has "
                f"{tokenizer.vocab_size:,}"
            )
    special = (config.pad_id, config.bos_id, config.eos_id)
    if special != (PAD, BOS, EOS):
        raise FolderError(
            f"{path}: pad_id, bos_id and eos_id are {special}, and those of its tokenizer {PAD, BOS, EOS}"
        )
    if len(run.data.labels) != (config.labels or 0):
        raise FolderError(f"{path}: the model has {config.labels or 0} classes, and {len(run.data.labels)} have a name")


class Trained(TypedDict, total=False):
    """What is known of how a model was trained; more may be there."""

    __pydantic_config__ = ConfigDict(extra="allow", strict=True)  # type: ignore[misc]  # pydantic's way
    texts: dict[str, list[dict[str, Any]]]
    trigrams: dict[str, str] | None
    lengths: dict[str, int] | None


_TRAINED = TypeAdapter(Trained)


def _trained(record: Any, path: Path) -> dict[str, Any]:
    try:
        return dict(_TRAINED.validate_python(record))
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in ("trained", *problem["loc"]))
        raise FolderError(f"{path}: {where} = {short_repr(problem['input'])}: {problem['msg']}") from None


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
        CONFIG: as_json(settings),
        WEIGHTS: save({name: weight.contiguous() for name, weight in weights.items()}),
        TOKENIZER: target.to_json().encode(),
        "README.md": card.encode(),
    }
    if source is not target:
        files[SOURCE_TOKENIZER] = source.to_json().encode()
    return files
