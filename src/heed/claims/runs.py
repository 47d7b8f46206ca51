"""Trains the models of an experiment with heed's own trainer, several at a time; what is there is not trained again."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from heed.artifacts.manifest import MANIFEST
from heed.claims.claim import Context
from heed.claims.processes import JobResult, run_jobs
from heed.errors import TrainingError
from heed.training.train import train


def train_runs(context: Context, runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Path]:
    """The folder of each trained model, by name. runs: the arguments of `heed.train` of each.

    An interrupted run continues from its last checkpoint. Where a run fails, the others are finished before the error.
    """
    folders = {name: context.folder / name for name in runs}
    todo = {name: (folder, dict(runs[name])) for name, folder in folders.items() if not (folder / MANIFEST).exists()}
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

    def finished(name: str, result: JobResult) -> None:
        results[name] = result
        if message:
            context.report(message.format(len(results), len(jobs), name))

    errors = run_jobs(jobs, work, finished, context.jobs, context.report)
    if errors:
        described = "; ".join(f"{name}: {error}" for name, error in errors.items())
        raise TrainingError(f"{len(errors)} of {len(jobs)} jobs failed ({described}); the others need not be repeated")
    return results


def train_model(folder: Path, arguments: Mapping[str, Any]) -> None:
    """Train one model, or continue its training."""
    train(out=folder, resume=True, cache=folder.parent / "cache", **arguments)
