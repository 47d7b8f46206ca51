"""Model folders: a trained model on disk with settings, weights, tokenizers, model card and manifest.

    config.json          the model's settings, and how it was trained
    model.safetensors    its weights; model.int8.safetensors if they are quantised (quantization.py)
    tokenizer.json       the (target) tokenizer; source_tokenizer.json if the source has a separate one
    lexicon.json         the words of the training sources, if misspelt ones are corrected
    README.md            the model card
    manifest.json        the sha256 of each file and the format's version; written last

Enters: a path. Leaves: a `ModelFolder`; or in the other direction, a model's parts to the files of a folder, which
writing.py writes atomically. Reading opens only files that the manifest lists, checks settings, tokenizers and the
weights' header for consistency, and verifies every file's sha256, all before a model is built. No pickle anywhere:
safetensors and JSON only. Knows nothing of training.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic takes this one in Python 3.11

from heed.artifacts.manifest import MANIFEST, Manifest, huggingface_hint
from heed.artifacts.weights import check_sizes, check_weights, read_header, read_weights
from heed.artifacts.writing import EXPORTED, INT8_WEIGHTS, LEXICON, json_bytes
from heed.config import RunConfig, TokenizerName
from heed.errors import ConfigError, DataError, FolderError
from heed.model.torch_state import torch_defaults
from heed.text.lexicon import Lexicon
from heed.text.tokenizer import BOS, EOS, PAD, Tokenizer, TokenizerPair
from heed.untrusted import short_repr

if TYPE_CHECKING:
    import torch

    import heed.model.transformer

CONFIG = "config.json"
TOKENIZER, SOURCE_TOKENIZER = "tokenizer.json", "source_tokenizer.json"
WEIGHTS = "model.safetensors"
_REMOVED = {"cutoff"}  # training settings of earlier versions


@dataclass(frozen=True)
class ModelFolder:
    """The content of a model folder, except the weights, which are read on demand."""

    path: Path
    run: RunConfig
    trained: dict[str, Any]  # how the model was trained: data, steps, scores
    tokenizers: TokenizerPair  # source and target
    lexicon: Lexicon | None = None  # of the training sources

    def settings(self) -> dict[str, dict[str, Any]]:
        """The settings that a run initialised from this model takes over."""
        architecture = self.run.model.model_dump(exclude={"vocab_size", "source_vocab_size", "labels", "kind"})
        shared = ("tokenizer", "source_tokenizer", "separate_vocabularies")
        return {"model": architecture, "data": {name: getattr(self.run.data, name) for name in shared}}

    @torch_defaults()
    def model(self) -> "heed.model.transformer.Transformer":
        """The model with its weights, on the CPU, in evaluation mode."""
        from heed.artifacts.tensors import model_of  # noqa: PLC0415 - torch takes seconds to import

        return model_of(self.run.model, self.stored_weights(), self.path)

    def weights(self) -> dict[str, NDArray[Any]]:
        """The weights in full precision; raises for a quantised folder."""
        refuse_quantized(self.path)
        return self.stored_weights()

    def weights_sum(self) -> str:
        """The sha256 of the stored weights, as the manifest lists it now: the folder may have been replaced."""
        sums = Manifest.load(self.path).sums
        return sums[INT8_WEIGHTS if INT8_WEIGHTS in sums else WEIGHTS]

    def stored_weights(self) -> dict[str, NDArray[Any]]:
        """The weights as they are stored: the matrices of a quantised folder in int8, with their scales."""
        return read_weights(self.path / (INT8_WEIGHTS if is_quantized(self.path) else WEIGHTS))


def is_quantized(path: Path) -> bool:
    return INT8_WEIGHTS in Manifest.load(path)


def refuse_quantized(path: Path) -> None:
    """Raise for a quantised folder, where full-precision weights are needed."""
    if is_quantized(path):
        raise FolderError(
            f"{path} holds weights quantised to int8, for translating, scoring and inspecting only; to fine-tune, "
            "average, export or quantize, use the model folder it was made from"
        )


def read_model_folder(path: Path) -> ModelFolder:
    """Open a model folder, which may be untrusted, after checking its files for consistency and integrity."""
    manifest = Manifest.load(path)
    path = manifest.path
    if EXPORTED in manifest:
        raise FolderError(
            f"{path} is an exported model, for heed translate only: use the model folder it was made from"
        )
    config = manifest.read_json(CONFIG)
    if "model" not in config and (hint := huggingface_hint(path, config)):
        raise FolderError(f"{path} is not a model folder: {hint}")
    trained = _trained(config.pop("trained", None), path / CONFIG)
    run = parse_settings(config, path / CONFIG)
    tokenizers = read_tokenizers(manifest, run)
    weights = INT8_WEIGHTS if INT8_WEIGHTS in manifest else WEIGHTS
    manifest.require(weights)
    if weights == INT8_WEIGHTS and WEIGHTS in manifest:
        raise FolderError(
            f"{path} is damaged: {MANIFEST} lists both {WEIGHTS} and {INT8_WEIGHTS}, expected one of them"
        )
    check_weights(run.model, read_header(path / weights), path / weights, quantized=weights == INT8_WEIGHTS)
    manifest.verify()
    return ModelFolder(path, run, trained, tokenizers, read_lexicon(manifest, run))


def parse_settings(config: Mapping[str, Any], path: Path) -> RunConfig:
    """Parse and check the settings of a config file, without those of earlier versions that matter in training only."""
    training = config.get("training")
    if isinstance(training, Mapping):
        config = {**config, "training": {name: value for name, value in training.items() if name not in _REMOVED}}
    try:
        run = RunConfig.model_validate_json(json.dumps(config))
    except ConfigError as error:
        raise FolderError(f"{path}: {error}") from None
    check_sizes(run.model, path)
    return run


def read_tokenizers(manifest: Manifest, run: RunConfig) -> TokenizerPair:
    """The source and target tokenizers, checked against the model's settings."""

    source_type, target_type = run.data.tokenizer_types

    def read(name: str, kind: TokenizerName) -> Tokenizer:
        try:
            return Tokenizer.from_json(manifest.read_file(name), kind)
        except DataError as error:
            raise FolderError(f"{manifest.path / name}: {error}") from None

    target = read(TOKENIZER, target_type)
    source = read(SOURCE_TOKENIZER, source_type) if SOURCE_TOKENIZER in manifest else target
    if run.model.source_vocab_size is not None:
        manifest.require(SOURCE_TOKENIZER)
    check_tokenizers(run, (source, target), manifest.path)
    return source, target


def read_lexicon(manifest: Manifest, run: RunConfig) -> Lexicon | None:
    """The lexicon of the training sources, which models that correct spelling need."""
    if LEXICON not in manifest:
        if run.translate.correct_spelling:
            raise FolderError(
                f"{manifest.path} has no {LEXICON}, which translate.correct_spelling = true needs: only training "
                "writes it"
            )
        return None
    try:
        return Lexicon.from_json(manifest.read_file(LEXICON))
    except DataError as error:
        raise FolderError(f"{manifest.path / LEXICON}: {error}") from None


def check_tokenizers(run: RunConfig, tokenizers: TokenizerPair, path: Path) -> None:
    """Check that vocabulary sizes, special token ids and class names fit the model."""
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
        raise FolderError(f"{path}: pad_id, bos_id and eos_id are {special}, but its tokenizer has {PAD, BOS, EOS}")
    if len(run.data.labels) != (config.labels or 0):
        raise FolderError(
            f"{path}: the model has {config.labels or 0} classes, but data.labels has {len(run.data.labels)} names"
        )


class Trained(TypedDict, total=False):
    """The known keys of `trained` in config.json; others are allowed."""

    __pydantic_config__ = ConfigDict(extra="allow", strict=True)  # type: ignore[misc]  # as pydantic requires
    texts: dict[str, list[dict[str, Any]]]
    trigrams: dict[str, str] | None
    lengths: dict[str, int] | None
    style: dict[str, float | str] | None


_TRAINED = TypeAdapter(Trained)


def _trained(record: Any, path: Path) -> dict[str, Any]:
    try:
        return dict(_TRAINED.validate_python(record))
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in ("trained", *problem["loc"]))
        raise FolderError(f"{path}: {key} = {short_repr(problem['input'])}: {problem['msg']}") from None


def model_files(
    weights: "Mapping[str, torch.Tensor]",
    run: RunConfig,
    trained: Mapping[str, Any],
    tokenizers: TokenizerPair,
    card: str,
    lexicon: Lexicon | None = None,
) -> dict[str, bytes]:
    """The files of a model folder, by name."""
    from safetensors.torch import save  # noqa: PLC0415 - torch takes seconds to import

    source, target = tokenizers
    settings = {**run.model_dump(mode="json"), "trained": dict(trained)}
    files = {
        CONFIG: json_bytes(settings),
        WEIGHTS: save({name: weight.contiguous() for name, weight in weights.items()}),
        TOKENIZER: target.to_json().encode(),
        "README.md": card.encode(),
    }
    if source is not target:
        files[SOURCE_TOKENIZER] = source.to_json().encode()
    if lexicon is not None:
        files[LEXICON] = lexicon.to_json()
    return files
