"""From raw text and settings to a run that is ready to train, new or resumed.

Text is read through once before anything else, so that its first mistake is found at once; then a tokenizer is
trained (a resumed run keeps its own), all pairs become ids in the cache, and model and optimiser are made or restored.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from heed.config import DataConfig, RunConfig
from heed.errors import ConfigError, DataError, FolderError
from heed.model.folder import ModelFolder, model_files, put_weights, read_model_folder, read_tensors
from heed.model.size import parameters
from heed.model.transformer import Transformer
from heed.text.corpus import Corpus, read_pairs
from heed.text.prepare import Prepared, Survey, prepare, survey
from heed.text.tokenizer import Tokenizer, suitable_vocab_size
from heed.training.batches import Batches
from heed.training.checkpoint import Progress, newest_checkpoint, restore
from heed.training.presets import Nested
from heed.training.trainer import Run, make_optimizer
from heed.training.validation import Validator

# Settings that may differ when a run is resumed: they change how long it goes on and what it keeps, not what it learns.
_MAY_CHANGE = ("training.max_steps", "training.keep_last", "training.patience")
_TOKENIZER_PAIRS = 1_000_000  # enough to learn any vocabulary from

Report = Callable[[str, int, int | None], None]  # what is being done, pairs done, pairs in all if known
Surveyed = list[tuple[Corpus, Survey]]


@dataclass(frozen=True)
class Ready:
    """A run ready to go on from `progress`, and what a person should be told about it."""

    run: Run
    progress: Progress
    notes: list[str]


def survey_all(corpora: Iterable[Corpus], report: Report) -> Surveyed:
    """Read every corpus through; each must have something in it."""
    surveyed = []
    for corpus in corpora:
        found = survey(corpus, lambda done: report("reading", done, None))
        if found.pairs == 0:
            raise DataError(f"{corpus.name} is empty")
        surveyed.append((corpus, found))
    return surveyed


def set_up(
    folder: Path,
    settings: Nested,
    training: Surveyed,
    validation: Surveyed,
    cache: Path,
    *,
    resume: bool,
    report: Report,
    init_from: ModelFolder | None = None,
) -> Ready:
    """Make or restore everything a run needs. init_from: a model whose vocabulary and weights to begin with."""
    checkpoint, notes = _checkpoint(folder, resume=resume)
    data = DataConfig.model_validate(settings["data"])
    if checkpoint is not None:
        tokenizers = read_model_folder(checkpoint).tokenizers
    elif init_from is not None:
        tokenizers = init_from.tokenizers
    else:
        tokenizers = _train_tokenizers(training, data, report)
    config = _with_vocabulary(settings, tokenizers)
    texts = {"training": _describe(training), "validation": _describe(validation)}
    if checkpoint is not None:
        _check_unchanged(checkpoint, {**config.model_dump(mode="json"), "texts": texts})

    def prepared(surveyed: Surveyed, purpose: str) -> Prepared:
        count = sum(found.pairs for _, found in surveyed)
        pairs = prepare(surveyed, tokenizers, data.max_tokens, cache, lambda done: report("preparing", done, count))
        if len(pairs) == 0:
            raise DataError(f"nothing to {purpose}: {'; '.join(str(kept) for kept in pairs.corpora)}")
        return pairs

    pairs = prepared(training, "learn from")
    notes += [str(kept) for kept in pairs.corpora]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if config.training.precision == "bfloat16" and device.type == "cpu":
        raise ConfigError("training.precision = 'bfloat16' needs a GPU: some CPUs advertise it and crash the process")
    torch.manual_seed(config.training.seed)
    model = Transformer(config.model)
    if init_from is not None:
        put_weights(model, read_tensors(init_from.path / "model.safetensors"), init_from.path)
    model.to(device)
    optimizer = make_optimizer(model, config)
    progress = Progress() if checkpoint is None else restore(checkpoint, model, optimizer)
    validator = None
    if validation:
        validator = Validator(validation, prepared(validation, "validate on"), tokenizers, config, device)

    def files(now: Progress) -> dict[str, bytes]:
        trained = {"texts": texts, "step": now.step, "best_validation_loss": now.best_loss}
        return model_files(model, config, trained, tokenizers, _card(config, texts, now))

    batches = Batches(pairs, config.training.tokens_per_batch, config.training.seed)
    return Ready(Run(folder, config, model, optimizer, batches, files, validator, device), progress, notes)


def _checkpoint(folder: Path, *, resume: bool) -> tuple[Path | None, list[str]]:
    """The checkpoint to go on from, and what was wrong with newer ones. A run is never overwritten by mistake."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderError(f"{folder}: {error.strerror}") from None
    checkpoint, complaints = newest_checkpoint(folder)
    if checkpoint is not None and not resume:
        raise FolderError(
            f"{folder} already holds a run, up to {checkpoint.name}: add --resume, or choose another --out"
        )
    if checkpoint is None and resume:
        raise FolderError("; ".join((f"{folder} has no checkpoint to resume from", *complaints)))
    return checkpoint, complaints


def _train_tokenizers(training: Surveyed, data: DataConfig, report: Report) -> tuple[Tokenizer, Tokenizer]:
    pairs = sum(found.pairs for _, found in training)
    size = data.vocab_size or suitable_vocab_size(pairs)
    every = -(-pairs // _TOKENIZER_PAIRS)

    def texts(*sides: str) -> Iterator[str]:
        for corpus, _ in training:
            for pair in read_pairs(corpus):
                if pair.line % every == 0:
                    yield from (getattr(pair, side) for side in sides)

    report("learning a vocabulary", 0, None)
    if data.separate_vocabularies:
        source, target = (Tokenizer.train(texts(side), data.tokenizer, size) for side in ("source", "target"))
        return source, target
    shared = Tokenizer.train(texts("source", "target"), data.tokenizer, size)
    return shared, shared


def _with_vocabulary(settings: Nested, tokenizers: tuple[Tokenizer, Tokenizer]) -> RunConfig:
    source, target = tokenizers
    model: dict[str, Any] = {**settings["model"], "vocab_size": target.vocab_size}
    if source is not target:
        model["source_vocab_size"] = source.vocab_size
    return RunConfig.model_validate({**settings, "model": model})


def _describe(surveyed: Surveyed) -> list[dict[str, Any]]:
    return [
        {"name": corpus.name, "weight": corpus.weight, "pairs": found.pairs, "digest": found.digest}
        for corpus, found in surveyed
    ]


def _check_unchanged(checkpoint: Path, now: dict[str, Any]) -> None:
    before = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    before["texts"] = before.pop("trained")["texts"]
    old, new = dict(_flat(before)), dict(_flat(now))
    changed = [
        f"{name} was {old.get(name)!r} and is now {new.get(name)!r}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name) and name not in _MAY_CHANGE and not name.endswith(".name")
    ]
    if changed:
        raise ConfigError(f"--resume goes on with the same settings and texts, but {'; '.join(changed)}")


def _flat(value: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    match value:
        case dict():
            for name, inner in value.items():
                yield from _flat(inner, f"{prefix}.{name}" if prefix else name)
        case list():
            for number, inner in enumerate(value):
                yield from _flat(inner, f"{prefix}.{number}")
        case _:
            yield prefix, value


def _card(config: RunConfig, texts: dict[str, list[dict[str, Any]]], progress: Progress) -> str:
    """The model card: what a person needs to know who finds only this folder."""
    size = sum(part.total for part in parameters(config.model))
    best = "none" if progress.best_loss is None else f"{progress.best_loss:.4f} (step {progress.best_step})"
    learnt = "\n".join(f"- {one['name']}: {one['pairs']:,} pairs, weight {one['weight']}" for one in texts["training"])
    languages = f"{config.data.source_language or '?'} to {config.data.target_language or '?'}"
    return f"""# A Transformer trained with heed

| | |
|---|---|
| languages | {languages} |
| model | {config.model.kind}, {config.model.encoder_layers}+{config.model.decoder_layers} layers, width \
{config.model.d_model}, {config.model.heads} heads, feed-forward {config.model.d_ff}, {size:,} parameters |
| vocabulary | {config.model.vocab_size:,} tokens ({config.data.tokenizer}) |
| steps | {progress.step:,}, {config.training.tokens_per_batch * config.training.accumulate:,} target tokens each |
| best validation loss | {best} |

Trained on:

{learnt}

All settings are in `config.json`.
"""
