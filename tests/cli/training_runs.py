"""Runs of `heed train` on the options of the fixture `train_options`, and what they leave on disk."""

import subprocess
from pathlib import Path

from heed.training.step_log import read_journal
from tests.cli.command import heed


def train(train_options: list[str], out: Path, steps: int, *extra_options: str) -> subprocess.CompletedProcess[str]:
    return heed("train", *train_options, "--out", str(out), "--set", f"training.max_steps={steps}", *extra_options)


def checkpoint_bytes(out: Path, step: int) -> dict[str, bytes]:
    """The weights and optimizer state of the checkpoint of a step."""
    folder = out / "checkpoints" / f"step-{step:08d}"
    return {name: (folder / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")}


def losses(out: Path) -> list[tuple[int, float]]:
    journal = read_journal(out / "journal.jsonl")
    return [(line["step"], line["loss"] if "loss" in line else line["validation_loss"]) for line in journal]
