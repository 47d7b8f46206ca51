import shutil
from pathlib import Path

import pytest
import torch

import heed
from heed.artifacts.checkpoint import last_checkpoints
from heed.artifacts.folder import read_model_folder
from heed.artifacts.manifest import verify
from heed.artifacts.tensors import read_tensors
from tests.cli.command import heed as command


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("average")
    (folder / "pairs.tsv").write_text("a b c\tc b a\nb a\ta b\n" * 20)
    options = ["data.tokenizer=bytes", "data.vocab_size=259", "model.d_model=16", "model.d_ff=16", "model.heads=2"]
    options += ["training.max_steps=6", "training.checkpoint_every=2", "training.tokens_per_batch=50"]
    sets = [word for option in options for word in ("--set", option)]
    process = command(
        "train", "--pairs", f"{folder}/pairs.tsv", "--out", f"{folder}/run", "--cache", f"{folder}/c", *sets
    )
    assert process.returncode == 0, process.stderr
    return folder / "run"


def test_the_average_is_the_mean_of_the_last_checkpoints(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "mean"
    process = command("average", str(run), "--last", "2", "--out", str(out))
    assert process.returncode == 0, process.stderr
    assert process.stderr == f"average of step-00000004, step-00000006 written to {out}\n"
    verify(out)
    mean, *parts = (
        read_tensors(folder / "model.safetensors")
        for folder in (out, run / "checkpoints" / "step-00000004", run / "checkpoints" / "step-00000006")
    )
    for name, weight in mean.items():
        torch.testing.assert_close(weight, (parts[0][name] + parts[1][name]) / 2)
        assert weight.dtype == torch.float32
    assert read_model_folder(out).trained["average_of"] == ["step-00000004", "step-00000006"]
    assert isinstance(heed.load(out)("a b"), str)


def test_too_few_checkpoints_and_existing_output_folders_are_errors(run: Path, tmp_path: Path) -> None:
    process = command("average", str(run), "--last", "9", "--out", str(tmp_path / "mean"))
    assert process.returncode == 2
    assert process.stderr.startswith(f"error: {run} has 3 consecutive checkpoints, not 9: use --last 3")
    process = command("average", str(run), "--last", "2", "--out", str(tmp_path))
    assert process.stderr == f"error: {tmp_path} already exists: choose another --out\n"


def test_a_best_checkpoint_before_a_gap_is_not_averaged(run: Path, tmp_path: Path) -> None:
    """Only consecutive checkpoints are averaged: a removed one in between is a gap."""
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    assert [path.name[-1] for path in last_checkpoints(copy)] == ["2", "4", "6"]
    shutil.rmtree(copy / "checkpoints" / "step-00000004")
    assert [path.name[-1] for path in last_checkpoints(copy)] == ["6"]
    process = command("average", str(copy), "--last", "2", "--out", str(tmp_path / "mean"))
    assert process.returncode == 2
    assert (
        "has 1 consecutive checkpoints, not 2 (step-00000002, kept as the best, is not consecutive)" in process.stderr
    )
