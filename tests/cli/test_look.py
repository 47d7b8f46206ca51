import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from heed.artifacts.folder import model_files
from heed.artifacts.writing import write_folder
from heed.cli.look import look
from heed.config import DataConfig, RunConfig, TrainingConfig
from heed.errors import ConfigError, InputError
from heed.text.tokenizer import Tokenizer
from tests.cli.command import ONE_THREAD, heed, heed_command
from tests.interpret.translators import small_translator


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model: its attention does not matter here."""
    words = Tokenizer.train(["a dog runs", "the cat sees a bird"] * 3, "words", 280)  # a folder has one kind
    translator = small_translator(source_vocab_size=words.vocab_size)
    tokenizers = words, translator.tokenizers[1]
    run = RunConfig(
        model=translator.model.config,
        data=DataConfig(tokenizer="words", separate_vocabularies=True),
        training=TrainingConfig(),
        search=translator.search,
    )
    folder = tmp_path_factory.mktemp("look") / "model"
    write_folder(folder, model_files(translator.model.state_dict(), run, {}, tokenizers, "# A model\n"))
    return folder


def test_look_shows_attention_and_leave_one_out_per_target_token(model: Path) -> None:
    run = heed("look", str(model), "a dog runs", "--target", "EIN HUND LÄUFT")
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("a dog runs\nEIN HUND LÄUFT\n")
    assert "attention:     cross-attention weight, layer 2, mean of its heads" in run.stdout
    assert "attention is not an explanation" in run.stdout
    first = [line.split()[0] for line in run.stdout.splitlines() if "%" in line]
    assert first == ["EIN", "HUND", "LÄUFT", "⟨/s⟩"]
    assert "The 6 most peaked of 16 attention heads" in run.stdout
    assert "EIN→HUND: " in run.stdout
    assert "⟨s⟩→EIN: ⟨s⟩" not in run.stdout  # it has no choice
    assert max(map(len, run.stdout.splitlines())) <= 80
    assert "\x1b" not in run.stdout


def test_look_truncates_nothing_in_a_pipe_or_narrow_terminal(model: Path) -> None:
    sentence = ["a", "dog", "sees", "the", "cat", "and", "runs"]
    command = [*heed_command(), "look", str(model), " ".join(sentence), "--target", "EIN HUND LÄUFT UND SIEHT"]

    def numbers(columns: dict[str, str]) -> list[str]:
        environment = {name: value for name, value in ONE_THREAD.items() if name != "COLUMNS"} | columns
        run = subprocess.run(command, env=environment, input="", capture_output=True, text=True, check=True)
        assert "…" not in run.stdout
        return sorted(re.findall(r"\d+%|[01]\.\d\d\b|−\d+\.\d", run.stdout))

    assert len(numbers({})) > 12
    assert numbers({}) == numbers({"COLUMNS": "80"}) == numbers({"COLUMNS": "45"})


def test_look_is_coloured_on_a_terminal_and_escapes_control_characters(model: Path) -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "heed", "look", str(model), "a \x1b[2Jdog", "--target", "[red]HUND"]
    settings = {**ONE_THREAD, "TERM": "xterm-256color", "COLUMNS": "80"}
    run = subprocess.Popen(command, stdout=theirs, env=settings)
    os.close(theirs)
    output_bytes = b""
    while chunk := _read(ours):
        output_bytes += chunk
    os.close(ours)
    assert run.wait() == 0
    output = output_bytes.decode()
    assert "\x1b[1m" in output
    assert "\x1b[2J" not in output
    assert "a ‹001B›[2Jdog" in output
    assert "[red]HUND" in output


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux reports that the other end is closed
        return b""


@pytest.mark.parametrize("ending", ["html", "svg", "png", "json"])
def test_look_saves_the_trace_in_every_format(
    model: Path, tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / f"look.{ending}"
    look(model, "a dog runs", "EIN HUND", out, full=ending == "json", set_=["search.max_length=5"])
    beginnings = {"html": b"<!doctype html>", "svg": b"<svg", "png": b"\x89PNG", "json": b'{"format"'}
    assert out.read_bytes().startswith(beginnings[ending])
    assert capsys.readouterr() == ("", f"trace written to {out}\n")
    if ending == "json":
        assert "values" in json.loads(out.read_text())["parts"][0]


def test_a_trace_that_cannot_be_saved_is_an_error(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--full needs -o look.html or -o look.json; found no -o"):
        look(model, "a dog", full=True)
    with pytest.raises(ConfigError, match=r"found -o look.svg"):
        look(model, "a dog", out=Path("look.svg"), full=True)
    with pytest.raises(InputError, match=r"look.gif: a trace cannot be saved as '.gif'"):
        look(model, "a dog", "EIN", out=tmp_path / "look.gif")
