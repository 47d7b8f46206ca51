"""SIGKILL at random times: files are always intact, and the resumed run ends bit-equal to an uninterrupted one."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from heed.artifacts.checkpoint import newest_checkpoint, restore_checkpoint
from heed.artifacts.folder import read_model_folder
from heed.artifacts.manifest import verify
from heed.artifacts.writing import MANIFEST
from heed.training.optimizer import make_optimizer
from heed.training.step_log import read_journal
from tests.cli.command import ONE_THREAD, fork_server
from tests.cli.forked import Forked
from tests.cli.training_runs import checkpoint_bytes

STEPS = 24
INTERVAL = 3  # steps between checkpoints, as in train_options


def train(train_options: list[str], out: Path) -> list[str]:
    """The arguments that start or resume a run. Its cache is its own, so that a kill may also hit text preparation."""
    options = [*train_options, "--out", str(out), "--cache", f"{out}.cache", "--set", f"training.max_steps={STEPS}"]
    return ["train", *options, *(["--resume"] if newest_checkpoint(out)[0] else [])]


def start(arguments: list[str], log: Path) -> Forked:
    with log.open("w") as output, Path(os.devnull).open() as nothing:
        return Forked.start(fork_server(), arguments, (nothing.fileno(), output.fileno(), output.fileno()))


@pytest.fixture(scope="module")
def uninterrupted(train_options: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run in a new process, which has another hash seed than the forked ones."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    command = [sys.executable, "-m", "heed", *train(train_options, out)]
    subprocess.run(command, check=True, env=ONE_THREAD, capture_output=True)
    return out


@pytest.mark.parametrize("kills", [25, pytest.param(500, marks=pytest.mark.endless)])
def test_a_run_killed_at_random_moments_loses_at_most_one_interval_and_ends_bit_equal(
    train_options: list[str], uninterrupted: Path, tmp_path: Path, kills: int
) -> None:
    seed = time.time_ns()
    print(f"seed {seed}")
    draw, log = random.Random(seed), tmp_path / "log"
    out, saved, max_wait = tmp_path / "run", 0, 0.5
    while kills:
        run = start(train(train_options, out), log)
        wait_until_the_kill(run, out, max_wait, draw)
        run.kill()
        code, _ = run.wait()
        assert code in (0, -signal.SIGKILL), log.read_text()
        kills -= code != 0
        before, saved = saved, assert_intact(out, saved)
        if (out / MANIFEST).exists():
            assert_equal_runs(out, uninterrupted)
            if draw.random() < 0.3:  # else the next kill hits a run that only has to write its model
                out, saved = tmp_path / f"run-{kills}", 0
        elif saved == before:
            max_wait *= 1.1  # so that some runs make progress on a slow machine too
        if code == 0:
            max_wait *= 0.8
    assert start(train(train_options, out), log).wait()[0] == 0, log.read_text()
    assert_equal_runs(out, uninterrupted)


def wait_until_the_kill(run: Forked, out: Path, max_wait: float, draw: random.Random) -> None:
    """Wait for a random time up to max_wait; half of the time also for the next change in the run's folders."""
    if run.ends_within(draw.uniform(0, max_wait)) or draw.random() < 0.5:
        return
    folders = out, out / "checkpoints", Path(f"{out}.cache")
    before = [modified_at(folder) for folder in folders]
    while [modified_at(folder) for folder in folders] == before and not run.ends_within(0.0005):
        pass
    run.ends_within(draw.uniform(0, 0.01))


def modified_at(folder: Path) -> int | None:
    """When an entry of a folder was last created, removed or renamed."""
    return folder.stat().st_mtime_ns if folder.exists() else None


def assert_intact(out: Path, saved_before: int) -> int:
    """Check that all files are valid and at most one interval is lost; returns the step of the newest checkpoint."""
    newest, warnings = newest_checkpoint(out)
    assert not warnings
    saved = 0
    if newest is not None:
        folder = read_model_folder(newest)
        model = folder.model()
        saved = restore_checkpoint(newest, model, make_optimizer(model, folder.run), has_ema=True)[0].step
    reached = max((entry["step"] for entry in read_journal(out / "journal.jsonl")), default=0)
    assert saved_before <= saved <= reached <= saved + INTERVAL
    if (out / MANIFEST).exists():
        verify(out)
    return saved


def assert_equal_runs(ours: Path, theirs: Path) -> None:
    """Weights, optimizer moments and losses are equal, byte for byte."""
    assert checkpoint_bytes(ours, STEPS) == checkpoint_bytes(theirs, STEPS)
    assert (ours / "model.safetensors").read_bytes() == (theirs / "model.safetensors").read_bytes()
    assert journal(ours) == journal(theirs)


def journal(out: Path) -> list[dict[str, Any]]:
    """The entries of the journal without their times."""
    return [{name: entry[name] for name in entry if name != "seconds"} for entry in read_journal(out / "journal.jsonl")]
