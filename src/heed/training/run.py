"""Builds the model, optimiser and batches of a run, new or restored from a checkpoint, and writes checkpoints."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from heed.artifacts.checkpoint import Progress, require_finite, restore_checkpoint, training_state, write_checkpoint
from heed.artifacts.folder import ModelFolder, model_files
from heed.artifacts.tensors import as_tensors, load_weights
from heed.backends.select import TrainingPlan, bpe_dropout, training_plan
from heed.backends.weight_versions import count_change
from heed.config import DataConfig, RunConfig
from heed.errors import ConfigError
from heed.model.size import parameter_counts
from heed.model.torch_state import float32_by_default, torch_defaults
from heed.model.transformer import Transformer
from heed.text.language_identification import trigram_profile
from heed.text.source_noise import SourceNoise
from heed.text.tokenizer import TokenizerPair
from heed.training.batches import Batches, ChangeIds, Resegment
from heed.training.bucketing import BucketShape
from heed.training.distributed import ProcessGroup, full_tensor, shard, shard_like
from heed.training.gradients import Gradients, make_gradients
from heed.training.optimizer import EMA, make_optimizer
from heed.training.resume import arithmetic_changes, arithmetic_of
from heed.training.run_inputs import RunInputs, check_training
from heed.training.step_log import METRICS, Listener
from heed.training.tasks import task_of
from heed.training.tasks.base import HeldOut, Validate

_EXAMPLES = 16  # batches whose sizes decide the static shape of captured steps


@dataclass(frozen=True)
class Run:
    """A training run in memory: model, optimiser, batches, and how they are trained, validated and saved."""

    folder: Path
    config: RunConfig
    model: Transformer
    optimizer: Optimizer
    batches: Batches
    files: Callable[[Progress, Mapping[str, Tensor]], Mapping[str, bytes]]  # the files of a model folder, by name
    validate: Validate | None
    device: torch.device
    plan: TrainingPlan  # how gradients are computed
    group: ProcessGroup = field(default_factory=ProcessGroup)
    ema: EMA | None = None

    @property
    def reads_losses_late(self) -> bool:
        """Whether a step is launched before the previous step's loss is read: so a single GPU never idles."""
        return self.device.type == "cuda" and self.group.size == 1

    def gradients(self) -> Gradients:
        """Make what computes this run's gradients."""
        shape = None
        if self.plan.is_captured:
            examples = [self.batches.batch(indices, 0) for indices in self.batches.epoch(0)[:_EXAMPLES]]
            shape = BucketShape.for_batches_like(examples, self.config.data.max_tokens + 1)
        return make_gradients(self.model, self.config, self.plan, shape)

    @contextmanager
    def inference_weights(self) -> Iterator[Mapping[str, Tensor] | None]:
        """The model has the weights to validate and save in this context: the EMA's, if any. Yields the raw weights."""
        if self.ema is None:
            count_change(self.model)
            yield None
        else:
            with self.ema.swapped_in() as raw_weights:
                yield raw_weights

    def save(self, progress: Progress) -> None:
        """Write a checkpoint; raises if a weight is not finite. All processes gather sharded weights, rank 0 writes."""
        with self.inference_weights() as raw_weights:
            weights = {name: full_tensor(weight) for name, weight in self.model.state_dict().items()}
            state = training_state(self.model, self.optimizer, raw_weights, full_tensor)
            require_finite(self.folder, progress.step, {**weights, **state})
            if self.group.is_first:
                write_checkpoint(self.folder, self.files(progress, weights), state, progress)


@torch_defaults()
def prepare_run(
    folder: Path,
    inputs: RunInputs,
    group: ProcessGroup,
    listener: Listener,
    init_from: ModelFolder | None = None,
) -> tuple[Run, Progress]:
    """The run and the progress to start from. init_from: the model folder to take initial weights from."""
    config, device = inputs.config, group.device()
    check_training(config.training, config.data, group.size)
    plan = training_plan(config, device)
    model = _initial_model(config, init_from).to(device)
    if config.training.shard:
        shard(model, group)
    optimizer = make_optimizer(model, config)
    ema = None if config.training.ema_decay is None else EMA(model, config.training.ema_decay)
    progress = Progress(mixed=plan.is_captured, compiled=plan.is_compiled)
    if (warning := _capture_warning(config, plan)) is not None:
        listener.warning(warning)
    if inputs.checkpoint is not None:
        has_ema = ema is not None
        progress, raw = restore_checkpoint(inputs.checkpoint, model, optimizer, has_ema=has_ema, shard_like=shard_like)
        if ema is not None:
            ema.resume(raw)
    original_plan = training_plan(config, device, compiled=progress.compiled)
    if original_plan.is_compiled != plan.is_compiled:
        stays = "" if original_plan.is_compiled else "not "
        listener.note(f"layers stay {stays}compiled, as when the run began, whatever max_steps is now")
    plan = original_plan
    arithmetic = arithmetic_of(plan, device, group.size)
    for warning in arithmetic_changes(progress.arithmetic, arithmetic):
        listener.warning(warning)
    progress = replace(progress, arithmetic=arithmetic)
    batches, validate = _batches(inputs, mixed=progress.mixed), _validator(inputs, group)
    files = _model_folder_files(inputs, group.size)
    return Run(folder, config, model, optimizer, batches, files, validate, device, plan, group, ema), progress


def _initial_model(config: RunConfig, init_from: ModelFolder | None) -> Transformer:
    """A model with random weights, or those of `init_from`; a classifier head for other labels stays random."""
    torch.manual_seed(config.training.seed)
    with float32_by_default():
        model = Transformer(config.model)
    if init_from is None:
        return model
    if init_from.run.model.kind != model.config.kind:
        raise ConfigError(
            f"the initial model {init_from.path} is of kind {init_from.run.model.kind!r}, and task = "
            f"{config.data.task!r} needs one of kind {model.config.kind!r}"
        )
    weights = as_tensors(init_from.weights())
    if init_from.run.data.labels != config.data.labels:
        head = {name: weight for name, weight in model.state_dict().items() if name.startswith("classes.")}
        weights = {name: weight for name, weight in weights.items() if not name.startswith("classes.")} | head
    load_weights(model, weights, init_from.path)
    return model


def _capture_warning(config: RunConfig, plan: TrainingPlan) -> str | None:
    """A warning where steps could be captured as a CUDA graph but for something that is missing."""
    wants_capture = plan.choice.device != "cpu" and config.training.capture and not config.training.shard
    if wants_capture and not plan.is_captured:
        return f"training is several times slower than it could be; {plan.choice.reason}"
    return None


def _batches(inputs: RunInputs, *, mixed: bool) -> Batches:
    settings, data, task = inputs.config.training, inputs.config.data, task_of(inputs.config)
    resegment = _resegment(inputs.tokenizers, data) if data.bpe_dropout or data.source_noise else None
    return Batches(
        inputs.pairs,
        settings.tokens_per_batch,
        settings.seed,
        resegment,
        mixed=mixed,
        collate=task.collate,
        sizes=task.sizes,
    )


def _resegment(tokenizers: TokenizerPair, data: DataConfig) -> Resegment:
    """How sentences change from epoch to epoch: misspelt sources, then BPE-dropout on both sides."""
    source, target = tokenizers
    source_dropout: ChangeIds = _unchanged
    target_dropout: ChangeIds = _unchanged
    if data.bpe_dropout:
        source_dropout = bpe_dropout(source, data.bpe_dropout)
        target_dropout = source_dropout if target is source else bpe_dropout(target, data.bpe_dropout)
    if not data.source_noise:
        return Resegment(source_dropout, target_dropout, data.max_tokens)
    misspell = SourceNoise(source, data.source_noise)
    return Resegment(lambda ids, keys: source_dropout(misspell(ids, keys), keys), target_dropout, data.max_tokens)


def _unchanged(sentences: Sequence[Sequence[int]], _keys: Sequence[str]) -> list[list[int]]:
    return [list(ids) for ids in sentences]


def _validator(inputs: RunInputs, group: ProcessGroup) -> Validate | None:
    if inputs.validation is None:
        return None
    held_out = HeldOut(inputs.validation, inputs.samples, inputs.lengths)
    return task_of(inputs.config).validator(inputs.config, inputs.tokenizers, held_out, group)


def _model_folder_files(
    inputs: RunInputs, processes: int
) -> Callable[[Progress, Mapping[str, Tensor]], dict[str, bytes]]:
    trigrams = {
        name: trigram_profile(pair[side] for pair in inputs.samples) for side, name in enumerate(("source", "target"))
    }

    def files(progress: Progress, weights: Mapping[str, Tensor]) -> dict[str, bytes]:
        trained = {
            "texts": inputs.texts,
            "step": progress.step,
            "best_validation_loss": progress.best_loss,
            "trigrams": trigrams,
            "lengths": None if inputs.lengths is None else inputs.lengths.to_json(),
            "style": None if inputs.style is None else inputs.style.to_json(),
        }
        card = _card(inputs.config, inputs.texts, progress, processes)
        return model_files(weights, inputs.config, trained, inputs.tokenizers, card, inputs.lexicon)

    return files


def _card(config: RunConfig, texts: dict[str, list[dict[str, Any]]], progress: Progress, processes: int) -> str:
    """The model card, `README.md` of the folder."""
    size = sum(part.total for part in parameter_counts(config.model))
    best = "none" if progress.best_loss is None else f"loss {progress.best_loss:.4f} (step {progress.best_step})"
    if progress.best_score is not None:
        best += f", {METRICS[task_of(config).metric].format(progress.best_score)}"
    tokens = config.training.tokens_per_batch * config.training.accumulate * processes
    corpora = "\n".join(
        f"- {corpus['name']}: {corpus['pairs']:,} pairs, weight {corpus['weight']}" for corpus in texts["training"]
    )
    languages = f"{config.data.source_language or '?'} to {config.data.target_language or '?'}"
    task = f"{config.data.task}{': ' + ', '.join(config.data.labels) if config.data.labels else ''}"
    return f"""# A Transformer trained with heed

| | |
|---|---|
| task | {task} |
| languages | {languages} |
| model | {config.model.kind}, {config.model.encoder_layers}+{config.model.decoder_layers} layers, width \
{config.model.d_model}, {config.model.heads} heads, feed-forward {config.model.d_ff}, {size:,} parameters |
| vocabulary | {config.model.vocab_size:,} tokens ({config.data.tokenizer_names}) |
| steps | {progress.step:,}, of at most {tokens:,} target tokens each |
| best validation | {best} |

Trained on:

{corpora}

All settings are in `config.json`.
"""
