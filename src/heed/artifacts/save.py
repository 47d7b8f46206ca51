"""Writes new model folders: `heed.save` for a model trained in Python, and int8 quantisation of a folder.

Enters: a `Transformer` and its tokenizer, or tokenizers. Leaves: a folder that `heed.load` and every command open.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.numpy import save as to_bytes
from torch import Tensor

from heed.artifacts.card import read_card, without_scores
from heed.artifacts.folder import WEIGHTS, check_tokenizers, model_files, read_model_folder
from heed.artifacts.manifest import MANIFEST
from heed.artifacts.quantization import quantize_weights
from heed.artifacts.tensors import as_tensors
from heed.artifacts.writing import INT8_WEIGHTS, current_version, write_folder
from heed.config import DataConfig, RunConfig
from heed.errors import FolderError, InputError
from heed.model.size import parameter_counts
from heed.model.transformer import Transformer
from heed.search_config import SearchConfig
from heed.text.tokenizer import Tokenizer, TokenizerPair


def save(  # noqa: PLR0913 - all but three by name
    model: Transformer,
    tokenizer: Tokenizer | TokenizerPair,
    folder: str | Path,
    *,
    source_language: str = "",
    target_language: str = "",
    labels: Sequence[str] = (),
    search: SearchConfig | None = None,
    max_tokens: int = 256,
    card: str | None = None,
) -> Path:
    """Write a model folder: ``heed.save(model, tokenizer, "runs/mine")``; an existing one is replaced.

    tokenizer: one for both sides, or a pair (source, target). source_language, target_language: codes such as "en", for
    the server and the card. labels: the class names of a classifier, in the order of its logits. search: the default
    search settings of `heed.load`. max_tokens: the length of the longest sentence trained on. card: the text of
    README.md.
    """
    if not isinstance(model, Transformer):
        raise InputError(
            f"save takes a heed.Transformer, found {type(model).__name__}: unwrap it first "
            "(.module of DistributedDataParallel, ._orig_mod of torch.compile)"
        )
    source, target = _pair(tokenizer)
    config, path = model.config, Path(folder)
    if source.kind != target.kind and config.source_vocab_size is None:
        raise InputError(
            f"tokenizers of two types, {source.kind!r} and {target.kind!r}, need a model with a source_vocab_size"
        )
    task = {"encoder-decoder": "translate", "decoder": "language-model"}.get(config.kind, "masked")
    data = {
        "task": task if config.labels is None else "classify",
        "labels": tuple(labels),
        "tokenizer": target.kind,
        "source_tokenizer": None if source.kind == target.kind else source.kind,
        "separate_vocabularies": config.source_vocab_size is not None,
        "max_tokens": max_tokens,
        "source_language": source_language,
        "target_language": target_language,
    }
    run = RunConfig(model=config, data=DataConfig.model_validate(data), search=search or SearchConfig())
    check_tokenizers(run, (source, target), path)
    if path.exists() and (
        not path.is_dir() or (any(path.iterdir()) and not (current_version(path) / MANIFEST).is_file())
    ):
        raise FolderError(f"{path} already exists and is not a model folder: choose another")
    weights = {name: _finite(name, weight) for name, weight in model.state_dict().items()}
    text = _card(run) if card is None else card
    write_folder(path, model_files(weights, run, {"origin": "heed.save"}, (source, target), text))
    return path


def _pair(tokenizer: object) -> TokenizerPair:
    match tokenizer:
        case Tokenizer():
            return tokenizer, tokenizer
        case (Tokenizer() as source, Tokenizer() as target):
            return source, target
    raise InputError(
        f"save takes a heed.Tokenizer or a pair of them, found {type(tokenizer).__name__}: train one with "
        'heed.Tokenizer.train(texts, "bpe", 8000), or load one with heed.Tokenizer.load(path, "bpe")'
    )


def _finite(name: str, weight: Tensor) -> Tensor:
    """A weight in float32 on the CPU, as folders store it; raises if it is not finite."""
    if not weight.isfinite().all():
        raise InputError(f"weight {name} is not finite, so the model was not saved")
    return weight.detach().to("cpu", torch.float32)


def _card(run: RunConfig) -> str:
    config, size = run.model, sum(part.total for part in parameter_counts(run.model))
    return f"""# A Transformer trained with heed

| | |
|---|---|
| task | {run.data.task} |
| languages | {run.data.source_language or "?"} to {run.data.target_language or "?"} |
| model | {config.kind}, width {config.d_model}, {config.heads} heads, feed-forward {config.d_ff}, {size:,} parameters |
| vocabulary | {config.vocab_size:,} tokens ({run.data.tokenizer_names}) |

Saved with `heed.save`, which does not record the training data. All settings are in `config.json`.
"""


def write_quantized(path: Path, out: Path) -> tuple[int, int]:
    """Quantise the model folder `path` to int8 as the folder `out`; returns the weights' bytes before and after."""
    if out.exists():
        raise FolderError(f"{out} already exists: choose another --out")
    folder = read_model_folder(path)
    kind = folder.run.model.kind
    if kind != "encoder-decoder":
        raise FolderError(f"{path} has kind = {kind!r}: int8 quantisation needs kind = 'encoder-decoder'")
    weights = folder.weights()
    card = without_scores(read_card(path))
    card += "\nIts weights were quantised to int8 by `heed quantize`; scores measured before that may differ.\n"
    files = model_files(
        as_tensors(weights),
        folder.run,
        {**folder.trained, "quantized": "int8"},
        folder.tokenizers,
        card,
        folder.lexicon,
    )
    size_before = len(files.pop(WEIGHTS))
    files[INT8_WEIGHTS] = to_bytes(quantize_weights(weights))
    write_folder(out, files)
    return size_before, len(files[INT8_WEIGHTS])
