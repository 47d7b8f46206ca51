"""Trains the models of an experiment with heed's own trainer, several at a time; what is there is not trained again."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from heed.artifacts.manifest import MANIFEST
from heed.claims.claim import Context
from heed.claims.processes import JobResult, run_jobs
from heed.errors import DataError, FolderError, TrainingError
from heed.training.resume import RunRecord
from heed.training.train import train


def train_runs(context: Context, runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Path]:
    """The folder of each trained model, by name. runs: the arguments of `heed.train` of each.

    An interrupted run continues from its last checkpoint. Where a run fails, the others are finished before the error.
    A folder that was trained with other settings, such as those of another scale, is an error.
    """
    folders = {name: context.folder / name for name in runs}
    for name, folder in folders.items():
        check_settings(folder, runs[name]["settings"])
    missing = [name for name, folder in folders.items() if not (folder / MANIFEST).exists()]
    missing.sort(key=lambda name: _layers(runs[name]["settings"]), reverse=True)  # so that no long run is left alone
    todo = {name: (folders[name], dict(runs[name])) for name in missing}
    if todo:
        context.report(f"training {len(todo)} models")
        results_of(context, train_model, todo, "trained model {} of {}: {}")
    return folders


def results_of(
    context: Context, work: Callable[..., JobResult], jobs: Mapping[str, tuple[Any, ...]], message: str = ""
) -> dict[str, JobResult]:
    """What `work` returns for the arguments of each job, several at a time; raises once all are done if one failed.

    message: reported after each job, with its number, the number of jobs and its name.
    """
    results: dict[str, JobResult] = {}
    began = time.monotonic()

    def finished(name: str, result: JobResult) -> None:
        results[name] = result
        if message:
            left = time_left(began, len(results), len(jobs) - len(results))
            context.report(message.format(len(results), len(jobs), name) + left)

    if context.pool is None:
        errors = run_jobs(jobs, work, finished, context.jobs, context.report)
    else:
        errors = context.pool.run(jobs, work, finished, context.report)
    if errors:
        described = "; ".join(f"{name}: {error}" for name, error in errors.items())
        raise TrainingError(f"{len(errors)} of {len(jobs)} jobs failed ({described}); the others need not be repeated")
    return results


def time_left(began: float, done: int, missing: int) -> str:
    """About how long the missing jobs will take, as a part of a report; nothing after the last one.

    began: when the first of those that are done began, on the monotonic clock.
    """
    minutes = (time.monotonic() - began) / done * missing / 60
    return f" (about {minutes:.0f} min to go)" if missing and minutes >= 1 else ""


def check_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Raise if a folder has a run with other settings, such as those of another scale: it would be taken for this one.

    settings: by full name; those that the run has left at their defaults are not compared.
    """
    try:
        recorded = RunRecord.read(folder).settings
    except (DataError, FolderError):  # none there, or unreadable: then training says so
        return
    for full_name, value in settings.items():
        section, _, name = full_name.partition(".")
        found = recorded.get(section, {}).get(name, value)
        if found != value:
            raise FolderError(
                f"{folder} has a run with {full_name} = {found!r}, not {value!r}: remove it, or choose another folder"
            )


def _layers(settings: Mapping[str, Any]) -> int:
    return sum(settings.get(f"model.{side}_layers", 0) for side in ("encoder", "decoder"))


def train_model(folder: Path, arguments: Mapping[str, Any]) -> None:
    """Train one model, or continue its training."""
    train(out=folder, resume=True, cache=folder.parent / "cache", **arguments)
