"""Trains the models of an experiment with heed's own trainer, several at a time; finished ones are not trained again.

Small models gain little from a second thread, so on a CPU each is trained in a process of its own with one thread.
"""

import multiprocessing
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from heed.artifacts.manifest import MANIFEST
from heed.claims.claim import Context
from heed.training.train import train


def train_runs(context: Context, runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Path]:
    """The folder of each trained model, by name. runs: the arguments of `heed.train` of each.

    An interrupted run continues from its last checkpoint.
    """
    folders = {name: context.folder / name for name in runs}
    todo = {name: dict(runs[name]) for name, folder in folders.items() if not (folder / MANIFEST).exists()}
    jobs = min(len(todo), context.jobs)
    if jobs <= 1:
        for number, (name, arguments) in enumerate(todo.items(), 1):
            context.report(f"training model {number} of {len(todo)}: {name}")
            _train(folders[name], arguments)
        return folders
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_use_one_thread) as pool:
        waiting = {pool.submit(_train, folders[name], arguments): name for name, arguments in todo.items()}
        try:
            _report_each(context, waiting)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return folders


def _report_each(context: Context, waiting: Mapping[Future[None], str]) -> None:
    context.report(f"training {len(waiting)} models")
    for number, future in enumerate(as_completed(waiting), 1):
        future.result()
        context.report(f"trained model {number} of {len(waiting)}: {waiting[future]}")


def _use_one_thread() -> None:
    torch.set_num_threads(1)


def _train(folder: Path, arguments: dict[str, Any]) -> None:
    train(out=folder, resume=True, cache=folder.parent / "cache", **arguments)
