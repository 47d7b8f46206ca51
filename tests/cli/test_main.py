import subprocess
import sys

import pytest

from heed import __version__
from tests.cli.command import heed


def test_the_version_and_help_are_there() -> None:
    assert heed("--version").stdout == f"heed {__version__}\n"
    for arguments in ([], ["--help"]):
        run = heed(*arguments)
        assert run.returncode == 0
        assert "demo" in run.stdout
        assert "describe" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["describe", "--preset", "smal"], "error: unknown preset 'smal': did you mean 'small'?"),
        (["describe", "--vocab-size", "0"], "error: vocab_size = 0: input should be greater than 0"),
        (["describe", "--vocab-size", "x"], "error: Invalid value for '--vocab-size': "),
        (["demo", "--steps", "0"], "error: Invalid value for '--steps'"),
        (["demo", "--sede", "1"], "error: No such option"),
        (["trian"], "error: No such command 'trian'."),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    run = heed(*arguments)
    assert run.returncode == 2
    assert run.stderr.startswith(message)
    assert len(run.stderr.splitlines()) == 1
    assert run.stdout == ""


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys, heed.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
