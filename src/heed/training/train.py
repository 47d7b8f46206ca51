"""`heed.train`: trains a model on text files and writes a model folder; `heed train` is its command line."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from heed.artifacts.checkpoint import Progress, best_checkpoint, read_model_files
from heed.artifacts.folder import read_model_folder
from heed.artifacts.writing import publish
from heed.errors import ConfigError, TrainingError
from heed.model.size import parameter_counts
from heed.paths import cache_folder
from heed.text.corpus_defaults import Hardware
from heed.training.corpora import PairFileOptions, Paths, TextFiles, training_corpora, validation_corpora
from heed.training.diagnosis import Diagnosis
from heed.training.distributed import ProcessGroup, join
from heed.training.presets import NestedSettings, nest_settings, setting_layers
from heed.training.resume import RunRecord
from heed.training.run import Run, prepare_run
from heed.training.run_inputs import RunInputs, gather_inputs
from heed.training.step_log import JOURNAL, Listener, Listeners, WarningLog, read_journal, tensorboard_listener
from heed.training.tasks import task_of
from heed.training.trainer import run_training

AnyPath: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True)
class Best:
    """The best validation of a run: its step, loss, and score by the task's metric."""

    step: int
    loss: float | None  # None where it was not finite
    score: float | None
    metric: str


@dataclass(frozen=True)
class TrainedRun:
    """The result of `train`: a model folder that `heed.load` opens, the best validation, and the history."""

    folder: Path
    best: Best | None  # None where nothing was validated

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """One dictionary per step and per validation since the run began: the lines of `journal.jsonl`."""
        return read_journal(self.folder / JOURNAL)


def train(  # noqa: PLR0913 - the options of `heed train`
    *,
    out: AnyPath,
    source: Paths = (),
    target: Paths = (),
    pairs: Paths = (),
    text: Paths = (),
    weight: Iterable[float] = (),
    valid_source: Paths = (),
    valid_target: Paths = (),
    valid_pairs: Paths = (),
    valid_text: Paths = (),
    source_key: str = "source",
    target_key: str = "target",
    columns: str | None = None,
    pairs_format: Literal["tsv", "csv", "jsonl"] | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    task: str | None = None,
    preset: str | None = None,
    config: AnyPath | None = None,
    settings: Mapping[str, Any] | None = None,
    init_from: AnyPath | None = None,
    resume: bool = False,
    cache: AnyPath | None = None,
    listener: Listener | None = None,
) -> TrainedRun:
    """Train a model on text files, as `heed train` does with the options of the same names.

    settings: single settings, `{"training.max_steps": 2000}`, which override `config`, a TOML file, which overrides the
    preset. resume: continue the run in `out`, which records all other arguments; if there is none, start it. listener:
    its methods are called as the run proceeds; without one nothing is printed. Ctrl-C finishes the step, saves a
    checkpoint and raises KeyboardInterrupt. Run one training at a time per process: it sets torch's random seed.
    """
    file = None if config is None else Path(config)
    layers = setting_layers(file, nest_settings(settings or {}), task, source_language, target_language, preset)
    if not os.fspath(out):
        raise ConfigError("out = '', expected the path of a folder")
    folder, options = Path(out), PairFileOptions(source_key, target_key, columns, pairs_format)
    files = TextFiles.of(source, target, pairs, text)
    held_out = TextFiles.of(valid_source, valid_target, valid_pairs, valid_text)
    if resume and not (files or held_out):
        start = RunRecord.read(folder)
    else:
        validation = validation_corpora(held_out, options)
        start = RunRecord(training_corpora(files, options, weight), validation, {}, None, cache_folder())
    start = replace(
        start,
        init_from=start.init_from if init_from is None else Path(init_from),
        cache=start.cache if cache is None else Path(cache),
    )
    with join() as group:
        listeners = [WarningLog()] if listener is None else [WarningLog(), listener]
        forwarding = Listeners(*(listeners if group.is_first else []))
        return _train(folder, start, preset, layers, group, forwarding, resume=resume)


def _train(
    folder: Path,
    start: RunRecord,
    preset: str | None,
    layers: tuple[NestedSettings, ...],
    group: ProcessGroup,
    listener: Listener,
    *,
    resume: bool,
) -> TrainedRun:
    if group.is_first:
        hardware = Hardware(group.device().type == "cuda", group.size)
        inputs = gather_inputs(folder, start, preset, layers, hardware, listener, resume=resume)
        group.broadcast(inputs.to_bytes())
    else:
        inputs = RunInputs.from_bytes(group.broadcast(b""))
    is_new = inputs.checkpoint is None
    init_from = read_model_folder(start.init_from) if is_new and start.init_from is not None else None
    run, progress = prepare_run(folder, inputs, group, listener, init_from)
    _describe(run, progress, listener)
    tensorboard = tensorboard_listener(folder, progress.step) if group.is_first else None
    watching = [listener, Diagnosis(run.config.training, listener), *([] if tensorboard is None else [tensorboard])]
    try:
        progress = run_training(run, progress, Listeners(*watching))
    except torch.OutOfMemoryError as error:
        raise TrainingError(_out_of_memory(run, error)) from error
    if group.is_first:
        _publish(folder, progress, listener)
    group.broadcast(b"")  # a barrier: no process returns before the model is in its folder
    metric = task_of(run.config).metric
    step = progress.best_step
    return TrainedRun(folder, None if step is None else Best(step, progress.best_loss, progress.best_score, metric))


def _describe(run: Run, progress: Progress, listener: Listener) -> None:
    size, processes = sum(part.total for part in parameter_counts(run.config.model)), run.group.size
    where = f"{run.device}" if processes == 1 else f"{processes} processes, this one on {run.device}"
    listener.note(f"{size:,} parameters, a vocabulary of {run.config.model.vocab_size:,}, on {where}")
    if progress.step:
        listener.note(f"resuming after step {progress.step:,}")


def _out_of_memory(run: Run, error: torch.OutOfMemoryError) -> str:
    settings = run.config.training
    size, batches = settings.tokens_per_batch, settings.accumulate
    return (
        f"{run.device} has too little memory ({'. '.join(str(error).split('. ')[:2])}): start a new run with smaller "
        f"batches, such as training.tokens_per_batch={size // 2} (now {size}) and, for steps of the same size, "
        f"training.accumulate={batches * 2} (now {batches})"
    )


def _publish(folder: Path, progress: Progress, listener: Listener) -> None:
    """Copy the best checkpoint's model to the run's folder."""
    best, warning = best_checkpoint(folder, progress)
    if warning is not None:
        listener.warning(warning)
    publish(folder, read_model_files(best))
    listener.note(f"done after step {progress.step:,}: the model of step {int(best.name[5:]):,} is in {folder}")
