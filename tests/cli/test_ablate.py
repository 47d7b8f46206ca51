import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from heed.cli.main import app
from heed.errors import HeedError
from heed.evaluation.metrics import bleu
from heed.inference.open import load
from heed.interpret.ablation import ablate as measure
from heed.search_config import SearchConfig
from tests.cli.untrained import write_model

SOURCES, REFERENCES = ["a b", "", "b a c"], ["B A", "C", "A B"]


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, lines in (("s", SOURCES), ("r", REFERENCES), ("short", REFERENCES[:2]), ("empty", [])):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
    write_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ablate(*arguments: str) -> str:
    """Run `heed ablate` in this process and return its standard output; exceptions are raised."""
    run = CliRunner().invoke(app, ["ablate", *arguments], env={"COLUMNS": "80"}, catch_exceptions=False)
    assert run.exit_code == 0, run.output
    return run.stdout


@pytest.mark.usefixtures("texts")
def test_table_and_json_show_the_measured_changes() -> None:
    options = ("model", "--source", "s", "--reference", "r", "--resamples", "60")
    expected = measure(load("model"), SOURCES, REFERENCES, resamples=60)
    printed = ablate(*options)
    assert max(map(len, printed.splitlines())) <= 80
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert f"nothing {expected.whole:.4f}" in lines
    for change in expected.changes:
        numbers = f"{change.value:.4f} {change.change:+.4f} {change.low:+.4f} to {change.high:+.4f}"
        assert f"{change.piece.name} {numbers}" in lines
    report = json.loads(ablate(*options, "--json"))
    assert (report["metric"], report["sentences"], report["whole"]) == ("log-prob", 3, expected.whole)
    assert [change["piece"]["name"] for change in report["changes"]] == [
        change.piece.name for change in expected.changes
    ]
    assert [change["low"] for change in report["changes"]] == [change.low for change in expected.changes]


def test_bleu_scores_translations_and_the_heat_map_has_a_cell_for_every_head(texts: Path) -> None:
    search = SearchConfig(beam=1, max_length=2)
    translations = [translation.text for translation in load("model").translate(SOURCES, search=search)]
    (texts / "own").write_text("".join(line + "\n" for line in translations))
    options = ["model", "--source", "s", "--reference", "own", "--metric", "bleu", "--set", "search.max_length=2"]
    run = CliRunner().invoke(app, ["ablate", *options, "--resamples", "40", "-o", "a.svg", "--json"])
    assert run.stderr == "ablating 18 parts\nheat map written to a.svg\n"
    assert json.loads(run.stdout)["whole"] == pytest.approx(bleu(translations, translations))
    picture = ET.fromstring((texts / "a.svg").read_text())  # noqa: S314 - our own
    titles = [title.text for title in picture.iter("{http://www.w3.org/2000/svg}title")]
    for path in ("encoder.1.self", "decoder.1.self", "decoder.1.cross"):
        for head in (1, 2):
            assert any(text and text.startswith(f"{path} without head.{head}: ") for text in titles)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("model --reference short", "short ends after line 2, s after line 3; line n of the target must"),
        ("model --reference empty --source empty", "empty is empty: expected sentences to score"),
        ("model --reference r -o a.gif", "a.gif ends in .gif: expected .svg, .png, .pdf"),
        ("model --reference r -o no/a.svg", "no/a.svg: the folder no does not exist"),
        ("model --reference r --set search.beam=2", "--set applies to decoding, and --metric log-prob does not decode"),
        ("model --reference r --set model.norm=pre", "only search settings are allowed here"),
        (
            "encoder --reference r",
            "encoder is an encoder-only model, trained with task = 'translate', and does not translate",
        ),
    ],
)
def test_invalid_ablate_options_are_errors(arguments: str, message: str, texts: Path) -> None:
    write_model(texts / "encoder", kind="encoder")
    with pytest.raises(HeedError) as error:
        ablate("--source", "s", *arguments.split())
    assert message in str(error.value)


def test_an_unknown_metric_is_an_error() -> None:
    run = CliRunner().invoke(app, ["ablate", "model", "--source", "s", "--reference", "r", "--metric", "chrf"])
    assert run.exit_code == 2
    assert "'chrf' is not one of" in run.stderr
