"""Training in several processes, through the real command: torchrun, gloo."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from heed.artifacts.tensors import read_tensors
from heed.training.step_log import read_journal
from tests.cli.command import ONE_THREAD
from tests.cli.training_runs import losses, train

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "heed"]


def torchrun_command(train_options: list[str], out: Path, steps: int, *extra_options: str) -> list[str]:
    options = [
        *train_options,
        "--out",
        str(out),
        "--set",
        f"training.max_steps={steps}",
        "--set",
        "training.accumulate=1",
    ]
    return [*TORCHRUN, "train", *options, *extra_options]


def run_torchrun(
    train_options: list[str], out: Path, steps: int, *extra_options: str
) -> subprocess.CompletedProcess[str]:
    command = torchrun_command(train_options, out, steps, *extra_options)
    return subprocess.run(command, capture_output=True, text=True, check=False, env=ONE_THREAD, timeout=120)


@pytest.fixture(scope="module")
def single_process(train_options: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process with two batches per step."""
    out = tmp_path_factory.mktemp("alone") / "run"
    run = train(train_options, out, 8)
    assert run.returncode == 0, run.stderr
    return out


def assert_equal_runs(ours: Path, theirs: Path) -> None:
    """Equal up to float32 rounding: the order of sums differs."""
    for (step, loss), (their_step, their_loss) in zip(losses(ours), losses(theirs), strict=True):
        assert step == their_step
        assert loss == pytest.approx(their_loss, rel=2e-5)
    weights, expected = (read_tensors(run / "model.safetensors") for run in (ours, theirs))
    for name, weight in weights.items():
        if not name.endswith("key.bias"):  # softmax cancels it: its gradient is rounding noise
            torch.testing.assert_close(weight, expected[name], rtol=1e-3, atol=1e-4, msg=name)


def test_two_processes_equal_one_and_one_can_resume_their_run(
    train_options: list[str], single_process: Path, tmp_path: Path
) -> None:
    out = tmp_path / "together"
    run = run_torchrun(train_options, out, 5)
    assert run.returncode == 0, run.stderr
    assert "2 processes" in run.stderr
    assert run.stderr.count("done after step 5") == 1  # only rank 0 prints
    resumed = train(train_options, out, 8, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    ours = [entry for entry in losses(out) if entry[0] != 5]
    theirs = [entry for entry in losses(single_process) if entry[0] != 5]
    assert [step for step, _ in ours] == [step for step, _ in theirs]
    assert [loss for _, loss in ours] == pytest.approx([loss for _, loss in theirs], rel=2e-5)


@pytest.mark.slow
def test_sharded_training_equals_one_process(train_options: list[str], tmp_path: Path) -> None:
    out = tmp_path / "sharded"
    run = run_torchrun(train_options, out, 4, "--set", "training.shard=true")
    assert run.returncode == 0, run.stderr
    run = run_torchrun(train_options, out, 8, "--resume", "--set", "training.shard=true")
    assert run.returncode == 0, run.stderr
    single = tmp_path / "mean"
    assert train(train_options, single, 8).returncode == 0
    assert_equal_runs(out, single)


def test_sharding_needs_several_processes(train_options: list[str], tmp_path: Path) -> None:
    run = train(train_options, tmp_path / "one", 4, "--set", "training.shard=true")
    assert run.returncode == 2
    assert "error: training.shard = true needs several processes: start them with torchrun" in run.stderr


@pytest.mark.slow
def test_a_killed_process_ends_the_job_which_then_resumes(train_options: list[str], tmp_path: Path) -> None:
    out = tmp_path / "killed"
    job = subprocess.Popen(
        torchrun_command(train_options, out, 100_000), stderr=subprocess.PIPE, text=True, env=ONE_THREAD
    )
    deadline = time.monotonic() + 100
    while len(read_journal(out / "journal.jsonl")) < 8:
        time.sleep(0.1)
        assert job.poll() is None
        assert time.monotonic() < deadline
    processes = [int(line) for line in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()]
    victim = next(pid for pid in processes if b"RANK=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    os.kill(victim, signal.SIGKILL)
    _, messages = job.communicate(timeout=60)
    assert job.returncode != 0
    assert "Signal 9 (SIGKILL)" in messages or "another process of this job has ended" in messages
    last_step = read_journal(out / "journal.jsonl")[-1]["step"]
    resumed = run_torchrun(train_options, out, last_step + 2, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert losses(out)[-1][0] == last_step + 2
