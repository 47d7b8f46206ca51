"""Unusable paths and pipes give one `error:` line in every verb; a bug in heed keeps its traceback."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from heed.cli.main import path_error
from tests.cli.command import ONE_THREAD, heed, heed_command
from tests.serving.folders import make_folder, make_lm_or_classifier


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A translation model, a language model, texts, a file in place of a folder, and folders in place of files."""
    folder = tmp_path_factory.mktemp("mistakes")
    make_folder(folder / "m")
    make_lm_or_classifier(folder / "lm", "language-model")
    (folder / "file").write_text("")
    (folder / "in.txt").write_text("A dog runs.\nThe cat sees a bird.\n")
    (folder / "pairs.tsv").write_text("A dog runs.\tEin Hund rennt.\n" * 4)
    for ending in ("svg", "html", "json", "npy", "jsonl"):
        (folder / f"folder.{ending}").mkdir()
    return folder


def refused(folder: Path, *arguments: str) -> str:
    """The single error line of a command that must fail."""
    run = subprocess.run(
        [*heed_command(), *arguments], cwd=folder, env=ONE_THREAD, input="", capture_output=True, text=True, check=False
    )
    assert "Traceback" not in run.stderr, run.stderr
    assert run.returncode == 2, run
    *_, last = run.stderr.splitlines()
    assert last.startswith("error: ")
    return last


@pytest.mark.parametrize(
    "command",
    [
        "quantize m --out file",
        "quantize m --out file/below",
        "quantize m --out /proc/absent/below",
        "export m --to onnx --out file/below",
        "demo --out file/below",
        "train --pairs pairs.tsv --out file/below",
        "train --pairs pairs.tsv --out r --cache file/below",
    ],
)
def test_a_folder_that_cannot_be_written_is_one_error_line(folder: Path, command: str) -> None:
    *rest, out = command.split()
    assert out.partition("/")[0] in refused(folder, *rest, out)
    assert "File name too long" in refused(folder, *rest, "x" * 300)


@pytest.mark.parametrize("out", ["folder.html", "file/x.svg", "absent/x.json", "folder.npy", "absent/x.jsonl"])
def test_a_file_that_cannot_be_written_is_one_error_line(folder: Path, out: str) -> None:
    command = "embed m in.txt" if out.endswith((".npy", ".jsonl")) else "look m dog"
    assert f"error: {out}: " in refused(folder, *command.split(), "-o", out)


@pytest.mark.parametrize("command", ["translate {} in.txt", "plot {}", "look {} a", "embed {} in.txt", "serve {}"])
def test_a_missing_model_folder_is_one_error_line(folder: Path, command: str) -> None:
    for model in ("absent", "x" * 300):
        assert model in refused(folder, *command.format(model).split())


def test_a_full_disk_behind_standard_output_is_one_error_line(folder: Path) -> None:
    for arguments in ("describe", "embed m in.txt", "translate m in.txt", "score m --source in.txt --target in.txt"):
        with open("/dev/full", "w") as full:
            command = [*heed_command(), *arguments.split()]
            run = subprocess.run(
                command, cwd=folder, env=ONE_THREAD, stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
        assert (run.returncode, run.stderr.splitlines()[-1]) == (2, "error: No space left on device"), arguments


@pytest.mark.parametrize("arguments", ["describe", "--help", "embed m in.txt", "heads m --source in.txt"])
def test_a_closed_output_pipe_ends_silently(folder: Path, arguments: str) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as nobody:
        run = subprocess.run(
            [*heed_command(), *arguments.split()],
            cwd=folder,
            env=ONE_THREAD,
            stdout=nobody,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert run.returncode == 0
    assert "rror" not in run.stderr


def test_a_defect_keeps_its_traceback() -> None:
    for defect in ("FileNotFoundError(2, 'gone', '/heed/lost')", "BrokenPipeError(32, 'pipe')", "OSError('odd')"):
        code = f"""if True:
            from heed.cli import describe, main
            def fail(): raise {defect}
            describe.describe = fail
            main.main()
        """
        command = [sys.executable, "-c", code, "describe"]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        assert run.returncode == 1
        assert "Traceback" in run.stderr


def test_only_paths_given_by_the_user_become_error_lines() -> None:
    arguments = ["quantize", "m", "--out=some/where"]
    denied = OSError(errno.EACCES, "Permission denied", "/x")
    assert path_error(denied, arguments) == "/x: Permission denied"
    beside = OSError(errno.ENOENT, "No such file or directory", "some/.where.writing")
    assert path_error(beside, arguments) == "some/.where.writing: No such file or directory"
    elsewhere = OSError(errno.ENOENT, "No such file or directory", "m/checkpoints/lost")
    assert path_error(elsewhere, arguments) is None
    assert path_error(OSError(errno.ENOSPC, "No space left on device"), arguments) == "No space left on device"
    assert path_error(OSError(errno.EACCES, "Permission denied"), arguments) is None
    assert path_error(ConnectionResetError(errno.ECONNRESET, "reset"), arguments) is None


def test_an_empty_out_option_is_an_error(folder: Path) -> None:
    for arguments in (["train", "--pairs", "pairs.tsv", "--out", ""], ["quantize", "m", "-o", ""]):
        assert "--out is empty: expected a path" in refused(folder, *arguments)


def test_the_old_spelling_of_out_goes_on_working(folder: Path, tmp_path: Path) -> None:
    run = heed("embed", str(folder / "m"), str(folder / "in.txt"), "--output", f"{tmp_path}/v.npy")
    assert (run.returncode, run.stderr) == (0, "note: --output is now spelt --out\n")
    assert (tmp_path / "v.npy").exists()


@pytest.mark.parametrize("home", ["file/below", ""])
def test_training_needs_no_home(folder: Path, tmp_path: Path, home: str) -> None:
    """Without a writable cache folder, training continues and prints which folder it uses instead."""
    environment = {**ONE_THREAD, "HOME": str(folder / home) if home else "/proc/absent", "TMPDIR": str(tmp_path)}
    environment.pop("XDG_CACHE_HOME", None)
    small = "--set model.d_model=16 --set model.heads=2 --set model.d_ff=16 --set training.max_steps=1"
    command = f"train --pairs pairs.tsv --valid-pairs pairs.tsv --out {tmp_path}/run --set data.vocab_size=300 {small}"
    run = subprocess.run(
        [*heed_command(), *command.split()],
        cwd=folder,
        env=environment,
        input="",
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "no cache folder" in run.stderr
