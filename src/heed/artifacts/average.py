"""Checkpoint averaging: the mean of the weights of a run's last checkpoints, written as a model folder."""

import json
from pathlib import Path

import torch

from heed.artifacts.card import read_card, without_scores
from heed.artifacts.checkpoint import checkpoints, read_progress
from heed.artifacts.folder import model_files, read_model_folder
from heed.artifacts.writing import write_folder
from heed.errors import FolderError


def last_checkpoints(run: Path) -> list[Path]:
    """The last consecutive checkpoints of a run, oldest first: each records the step of the one before it."""
    found: list[Path] = []
    before: int | None = None
    for path in reversed(checkpoints(run)):
        step = int(path.name.removeprefix("step-"))
        if before is not None and step != before:
            break
        found.append(path)
        before = read_progress(path).previous  # older formats do not record it: then the folders that are there count
    return found[::-1]


def average(run: Path, last: int, out: Path) -> list[Path]:
    """Write the mean of a run's last `last` checkpoints to `out`; returns their folders."""
    paths = last_checkpoints(run)[-last:]
    if not paths:
        raise FolderError(f"{run} is not a run's folder: it has no checkpoints")
    if len(paths) < last:
        others = [path.name for path in checkpoints(run) if path not in paths]
        older = f" ({', '.join(others)}, kept as the best, is not one of the last)" if others else ""
        raise FolderError(
            f"{run} has its last {len(paths)} checkpoints, not {last}{older}: take --last {len(paths)}, or train with "
            "a larger training.keep_last"
        )
    if out.exists():
        raise FolderError(f"{out} is already there: choose another --out")
    total: dict[str, torch.Tensor] = {}
    folders = [read_model_folder(path) for path in paths]
    newest = folders[-1]
    for folder in folders:
        if folder.run.model != newest.run.model:
            raise FolderError(f"{folder.path} and {newest.path} have models of different settings, and no average")
        for name, weight in folder.weights().items():
            total[name] = total.get(name, torch.zeros((), dtype=torch.float64)) + weight.double()
    mean = {name: (weight / len(paths)).float() for name, weight in total.items()}
    trained = {**newest.trained, "average_of": [path.name for path in paths]}
    card = without_scores(read_card(newest.path))
    card += f"\nIts weights are the mean of {len(paths)} checkpoints: {json.dumps([path.name for path in paths])}.\n"
    write_folder(out, model_files(mean, newest.run, trained, newest.tokenizers, card))
    return paths
