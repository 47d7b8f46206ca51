"""`heed.train`: text files and settings to a trained model folder, from Python; `heed train` is its command line."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

from heed.artifacts.checkpoint import Progress, best_checkpoint, read_model_files
from heed.artifacts.folder import read_model_folder
from heed.artifacts.writing import publish
from heed.errors import ConfigError
from heed.model.size import parameter_counts
from heed.paths import cache_folder
from heed.training.corpora import PairFileOptions, Paths, TextFiles, training_corpora, validation_corpora
from heed.training.distributed import ProcessGroup, join
from heed.training.presets import NestedSettings, nested, setting_layers
from heed.training.resume import RunRecord
from heed.training.run import Run, prepare_run
from heed.training.run_inputs import RunInputs, gather_inputs
from heed.training.step_log import JOURNAL, Listener, Listeners, read_journal, tensorboard_listener
from heed.training.tasks import task_of
from heed.training.trainer import run_training

AnyPath: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True)
class Best:
    """The best validation of a run: its step, loss, and score by the task's metric."""

    step: int
    loss: float | None  # none where it was not finite
    score: float | None
    metric: str


@dataclass(frozen=True)
class TrainedRun:
    """What `train` leaves: a model folder that `heed.load` opens, its best validation, and its history."""

    folder: Path
    best: Best | None  # none where nothing was validated

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
    """Train a model on files of text, as `heed train` does with the options of the same names.

    settings: single settings, `{"training.max_steps": 2000}`, on top of `config`, a TOML file, on top of the preset.
    resume: go on with the run in `out`, which records all other arguments; or start it. listener: follows the run;
    without one nothing is printed. Ctrl-C ends the step, saves a checkpoint and raises KeyboardInterrupt. One training
    at a time per process: torch's random generator belongs to it meanwhile.
    """
    file = None if config is None else Path(config)
    layers = setting_layers(file, nested(settings or {}), task, source_language, target_language, preset)
    if not os.fspath(out):
        raise ConfigError("out = '' names no folder")
    folder, reading = Path(out), PairFileOptions(source_key, target_key, columns, pairs_format)
    files = TextFiles.of(source, target, pairs, text)
    held_out = TextFiles.of(valid_source, valid_target, valid_pairs, valid_text)
    if resume and not (files or held_out):
        start = RunRecord.read(folder)
    else:
        validation = validation_corpora(held_out, reading)
        start = RunRecord(training_corpora(files, reading, weight), validation, {}, None, cache_folder())
    start = replace(
        start,
        init_from=start.init_from if init_from is None else Path(init_from),
        cache=start.cache if cache is None else Path(cache),
    )
    with join() as group:
        heard = Listeners(*([] if listener is None else [listener])) if group.is_first else Listener()
        return _train(folder, start, preset, layers, group, heard, resume=resume)


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
        inputs = gather_inputs(folder, start, preset, layers, listener, resume=resume)
        group.from_first(inputs.to_bytes())
    else:
        inputs = RunInputs.from_bytes(group.from_first(b""))
    begins = start.init_from is not None and inputs.checkpoint is None
    initial = read_model_folder(start.init_from) if begins and start.init_from is not None else None
    run, progress = prepare_run(folder, inputs, group, listener, initial)
    _describe(run, progress, listener)
    board = tensorboard_listener(folder, progress.step) if group.is_first else None
    progress = run_training(run, progress, listener if board is None else Listeners(listener, board))
    if group.is_first:
        _publish(folder, progress, listener)
    group.from_first(b"")  # no process returns before the model is in its folder
    metric = task_of(run.config).metric
    step = progress.best_step
    return TrainedRun(folder, None if step is None else Best(step, progress.best_loss, progress.best_score, metric))


def _describe(run: Run, progress: Progress, listener: Listener) -> None:
    size, processes = sum(part.total for part in parameter_counts(run.config.model)), run.group.size
    where = f"{run.device}" if processes == 1 else f"{processes} processes, this one on {run.device}"
    listener.note(f"{size:,} parameters, {run.config.model.vocab_size:,} tokens, on {where}")
    if progress.step:
        listener.note(f"going on after step {progress.step:,}")


def _publish(folder: Path, progress: Progress, listener: Listener) -> None:
    """Make the best checkpoint the run's model."""
    best, complaint = best_checkpoint(folder, progress)
    if complaint is not None:
        listener.warning(complaint)
    publish(folder, read_model_files(best))
    listener.note(f"done after step {progress.step:,}: the model of step {int(best.name[5:]):,} is in {folder}")
