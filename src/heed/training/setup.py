"""What text has become, and settings, to a run that is ready to train, new or resumed: model, optimiser, batches."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heed.artifacts.folder import ModelFolder, model_files, put_weights
from heed.backends.cpu.bpe import quickest_bpe_dropout
from heed.backends.cuda.graph import missing_for_capture
from heed.config import RunConfig
from heed.errors import ConfigError
from heed.model.size import parameters
from heed.model.torch_state import float32_by_default, torch_defaults
from heed.model.transformer import Transformer
from heed.text.language_identification import profile
from heed.training.batches import Batches, Recut
from heed.training.checkpoint import Progress, restore
from heed.training.distributed import Team, shard
from heed.training.ema import RunningMean
from heed.training.learner import can_capture, check_precision, will_compile
from heed.training.material import Material
from heed.training.resuming import arithmetic_of, changes
from heed.training.run import Run, make_optimizer
from heed.training.task import METRICS, HeldOut
from heed.training.tasks import task_of


@dataclass(frozen=True)
class Ready:
    """A run ready to go on from `progress`, and what a person should be told about it."""

    run: Run
    progress: Progress
    notes: list[str]


@torch_defaults()
def set_up(folder: Path, material: Material, team: Team, init_from: ModelFolder | None = None) -> Ready:
    """Make or restore everything a run needs. init_from: a model whose weights to begin with."""
    config, settings, task = material.config, material.config.training, task_of(material.config)
    device = team.device()
    check_precision(config, device)
    if settings.best_by not in ("loss", task.metric):
        raise ConfigError(
            f"training.best_by = {settings.best_by!r}: task = {config.data.task!r} has loss and {task.metric}"
        )
    if settings.shard and team.size == 1:
        raise ConfigError("training.shard = True needs several processes: start them with torchrun")
    torch.manual_seed(settings.seed)
    with float32_by_default():
        model = Transformer(config.model)
    if init_from is not None:
        put_weights(model, _first_weights(model, init_from, config), init_from.path)
    model.to(device)
    if settings.shard:
        shard(model, team)
    optimizer = make_optimizer(model, config)
    mean = None if settings.ema_decay is None else RunningMean(model, settings.ema_decay)
    progress = Progress(mixed=can_capture(config, device), compiled=will_compile(config, device))
    notes = [*material.notes, *_notes(config, device)]
    if material.checkpoint is not None:
        progress = restore(material.checkpoint, model, optimizer, mean)
    compiled = _is_compiled(progress, config, device)
    if compiled != will_compile(config, device):
        notes.append(f"layers stay {'' if compiled else 'not '}compiled, as the run began, whatever max_steps is now")
    arithmetic = arithmetic_of(config, device, team.size, compiled=compiled)
    notes += changes(progress.arithmetic, arithmetic)
    progress = replace(progress, arithmetic=arithmetic)

    trigrams = {
        name: profile(pair[side] for pair in material.samples) for side, name in enumerate(("source", "target"))
    }

    def files(now: Progress, weights: Mapping[str, Tensor]) -> dict[str, bytes]:
        trained = {
            "texts": material.texts,
            "step": now.step,
            "best_validation_loss": now.best_loss,
            "trigrams": trigrams,
            "lengths": None if material.lengths is None else material.lengths.to_json(),
        }
        card = _card(config, task.metric, material.texts, now, team.size)
        return model_files(weights, config, trained, material.tokenizers, card)

    validator = None
    if material.validation is not None:
        held_out = HeldOut(material.validation, material.samples, material.lengths)
        validator = task.validator(config, material.tokenizers, held_out, team)
    batches = Batches(
        material.pairs,
        settings.tokens_per_batch,
        settings.seed,
        _recut(material),
        mixed=progress.mixed,
        collate=task.collate,
        sizes=task.sizes,
    )
    run = Run(folder, config, model, optimizer, batches, files, validator, device, team, mean, compiled)
    return Ready(run, progress, notes)


def _first_weights(model: Transformer, init_from: ModelFolder, config: RunConfig) -> dict[str, Tensor]:
    """A model's weights to begin with; other labels than it was trained for are learnt anew."""
    if init_from.run.model.kind != model.config.kind:
        raise ConfigError(
            f"--init-from {init_from.path} has a model of kind {init_from.run.model.kind!r}, and task = "
            f"{config.data.task!r} needs one of kind {model.config.kind!r}"
        )
    given = init_from.weights()
    if init_from.run.data.labels == config.data.labels:
        return given
    own = {name: weight for name, weight in model.state_dict().items() if name.startswith("classes.")}
    return {name: weight for name, weight in given.items() if not name.startswith("classes.")} | own


def _is_compiled(progress: Progress, config: RunConfig, device: torch.device) -> bool:
    """Whether layers are compiled. Where that follows from how long the run is, it stays as it was in the beginning."""
    if progress.compiled is None or config.training.compile is not None or not can_capture(config, device):
        return will_compile(config, device)
    return progress.compiled


def _notes(config: RunConfig, device: torch.device) -> list[str]:
    missing = missing_for_capture()
    if device.type == "cuda" and config.training.capture and missing is not None:
        return [f"steps are not captured, so training is several times slower than it could be: {missing}"]
    return []


def _recut(material: Material) -> Recut | None:
    data = material.config.data
    if not data.bpe_dropout:
        return None
    source, target = material.tokenizers
    cut_source = quickest_bpe_dropout(source, data.bpe_dropout)
    cut_target = cut_source if target is source else quickest_bpe_dropout(target, data.bpe_dropout)
    return Recut(cut_source, cut_target, data.max_tokens)


def _card(
    config: RunConfig, metric: str, texts: dict[str, list[dict[str, Any]]], progress: Progress, processes: int
) -> str:
    """The model card: what a person needs to know who finds only this folder."""
    size = sum(part.total for part in parameters(config.model))
    best = "none" if progress.best_loss is None else f"loss {progress.best_loss:.4f} (step {progress.best_step})"
    if progress.best_score is not None:
        best += f", {METRICS[metric].format(progress.best_score)}"
    tokens = config.training.tokens_per_batch * config.training.accumulate * processes
    learnt = "\n".join(f"- {one['name']}: {one['pairs']:,} pairs, weight {one['weight']}" for one in texts["training"])
    languages = f"{config.data.source_language or '?'} to {config.data.target_language or '?'}"
    task = f"{config.data.task}{': ' + ', '.join(config.data.labels) if config.data.labels else ''}"
    return f"""# A Transformer trained with heed

| | |
|---|---|
| task | {task} |
| languages | {languages} |
| model | {config.model.kind}, {config.model.encoder_layers}+{config.model.decoder_layers} layers, width \
{config.model.d_model}, {config.model.heads} heads, feed-forward {config.model.d_ff}, {size:,} parameters |
| vocabulary | {config.model.vocab_size:,} tokens ({config.data.tokenizer}) |
| steps | {progress.step:,}, of at most {tokens:,} target tokens each |
| best validation | {best} |

Trained on:

{learnt}

All settings are in `config.json`.
"""
