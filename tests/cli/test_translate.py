import subprocess
import sys
from pathlib import Path

import pytest

import heed
from tests.cli.command import ONE_THREAD
from tests.cli.command import heed as command


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learnt next to nothing: what it writes does not matter here."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "pairs.tsv").write_text("a b c\tc b a\nb a\ta b\n" * 20)
    options = ["data.tokenizer=bytes", "data.vocab_size=259", "model.d_model=16", "model.d_ff=16", "model.heads=2"]
    options += ["training.max_steps=2", "training.checkpoint_every=2", "training.tokens_per_batch=50"]
    sets = [word for option in options for word in ("--set", option)]
    run = command("train", "--pairs", f"{folder}/pairs.tsv", "--out", f"{folder}/run", "--cache", f"{folder}/c", *sets)
    assert run.returncode == 0, run.stderr
    return folder / "run"


def translate(model: Path, text: bytes, *files: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "heed", "translate", str(model), *files]
    return subprocess.run(command, input=text, capture_output=True, check=False, env=ONE_THREAD)


def test_as_many_lines_come_out_as_went_in_and_empty_ones_stay_empty(model: Path) -> None:
    run = translate(model, "a b\n\nc é 犬\na b".encode())
    assert run.returncode == 0, run.stderr
    lines = run.stdout.decode().split("\n")
    assert len(lines) == 5
    assert lines[1] == lines[4] == ""
    assert lines[0] == lines[3]
    assert run.stderr == b""


def test_the_command_and_the_library_agree(model: Path, tmp_path: Path) -> None:
    texts = ["a b", "c", "", "b a c"]
    (tmp_path / "in.txt").write_text("".join(text + "\n" for text in texts))
    translator = heed.load(model)
    assert translate(model, b"", str(tmp_path / "in.txt")).stdout.decode().splitlines() == [
        " ".join(text.splitlines()) for text in translator(texts)
    ]
    assert translator("a b") == translator(["x y z", "a b"])[1]


def test_invalid_text_is_an_error_with_its_line(model: Path) -> None:
    run = translate(model, b"a b\n\xff\n")
    assert run.returncode == 2
    assert run.stderr.startswith(b"error: standard input:2: ")


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    run = translate(tmp_path, b"a\n")
    assert run.returncode == 2
    assert run.stderr.decode() == f"error: {tmp_path} is not a model folder: it has no manifest.json\n"
