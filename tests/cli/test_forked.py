"""A command in the fork server behaves like one in a new process."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import ONE_THREAD, heed_command

SCORE = ["evaluate", "--hypothesis", "-", "--reference", "reference", "--resamples", "40"]


@pytest.mark.parametrize("arguments", [SCORE, [*SCORE, "--json"], ["evaluate", "reference"], ["tarin"], ["--help"]])
def test_a_forked_command_equals_a_new_process(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "reference").write_text("ein schöner Hund\n犬\n")
    forked, new_process = (
        subprocess.run(
            [*command, *arguments],
            input="ein Hund\n犬\n".encode(),
            capture_output=True,
            check=False,
            cwd=tmp_path,
            env={**ONE_THREAD, "COLUMNS": "60"},
        )
        for command in (heed_command(), [str(Path(sys.executable).with_name("heed"))])
    )
    assert (forked.returncode, forked.stdout, forked.stderr) == (
        new_process.returncode,
        new_process.stdout,
        new_process.stderr,
    )
