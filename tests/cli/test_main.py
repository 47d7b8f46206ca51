import subprocess
import sys

import pytest
import torch
import typer

from heed import __version__
from heed.cli.main import app, main
from tests.cli.command import ONE_THREAD, heed


def test_version_and_help_are_printed() -> None:
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
def test_a_user_error_is_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    run = heed(*arguments)
    assert run.returncode == 2
    assert run.stderr.startswith(message)
    assert len(run.stderr.splitlines()) == 1
    assert run.stdout == ""


def test_a_gpu_out_of_memory_is_one_line_and_any_other_runtime_error_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(error: RuntimeError) -> None:
        raise error

    out_of_memory = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total of ...")
    monkeypatch.setattr("heed.cli.main._run", lambda: fail(out_of_memory))
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err.startswith(
        "error: too little memory (CUDA out of memory. Tried to allocate 2.00 GiB): use smaller batches, such as --set"
    )
    monkeypatch.setattr("heed.cli.main._run", lambda: fail(RuntimeError("a defect")))
    with pytest.raises(RuntimeError, match="a defect"):
        main()


def test_every_verb_accepts_h_for_help() -> None:
    group = typer.main.get_group(app)
    with group.make_context("heed", [], resilient_parsing=True) as context:
        for name, verb in group.commands.items():
            with verb.make_context(name, [], parent=context, resilient_parsing=True) as verb_context:
                assert set(verb.get_help_option_names(verb_context)) == {"-h", "--help"}
    for arguments in (["-h"], ["train", "-h"], ["bench", "train", "-h"]):
        run = heed(*arguments)
        assert (run.returncode, run.stderr) == (0, "")
        assert "Usage:" in run.stdout


def test_a_shell_completes_verbs_and_options() -> None:
    assert "--install-completion" in heed("--help").stdout

    def completed(words: str) -> list[str]:
        variables = {"_HEED_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        code = "import sys; sys.argv[0] = 'heed'; from heed.cli.main import main; main()"
        run = subprocess.run(
            [sys.executable, "-c", code], env={**ONE_THREAD, **variables}, capture_output=True, text=True, check=False
        )
        return run.stdout.split()

    assert completed("heed tra") == ["train", "translate"]
    assert completed("heed train --res") == ["--resume"]


def test_help_does_not_import_torch() -> None:
    code = "import sys, heed.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
