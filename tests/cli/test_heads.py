import json
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heed.cli.main import app
from heed.errors import HeedError
from heed.inference.open import load
from heed.interpret.head_statistics import HeadStatistics, batches, head_statistics
from tests.cli.untrained import write_model

SOURCES, TARGETS = ["a b", "", "b a c"], ["B A", "C", "A B D"]


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, lines in (("s", SOURCES), ("t", TARGETS), ("short", TARGETS[:2]), ("empty", []), ("blank", [""])):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
    write_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def heads(*arguments: str) -> str:
    """Run `heed heads` in this process and return its standard output; exceptions are raised."""
    run = CliRunner().invoke(app, ["heads", *arguments], env={"COLUMNS": "80"}, catch_exceptions=False)
    assert run.exit_code == 0, run.output
    return run.stdout


def measured(targets: list[str] | None) -> list[HeadStatistics]:
    translator = load("model")
    of_source, of_target = translator.tokenizers
    if targets is None:
        target_ids = [
            translation.ids for translation in translator.translate(SOURCES, search=translator.search.greedy())
        ]
    else:
        target_ids = [tuple(ids) for ids in of_target.encode(targets)]
    return head_statistics(translator.model, batches(translator.model, of_source.encode(SOURCES), target_ids))


@pytest.mark.usefixtures("texts")
def test_table_and_json_show_the_measured_statistics() -> None:
    expected = measured(TARGETS)
    printed = heads("model", "--source", "s", "--target", "t")
    assert max(map(len, printed.splitlines())) <= 80
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    for head in expected:
        edge = head.start if head.end is None else head.end
        shares = (head.previous, head.same, head.next, edge, head.sharpness, head.coverage)
        distance = [] if head.distance is None else [f"{head.distance:.1f}"]
        numbers = [
            f"{head.entropy:.2f}",
            f"{head.evenness:.2f}",
            *distance,
            *(f"{s:.2f}" for s in shares if s is not None),
        ]
        assert " ".join([f"{head.path}.{head.head}", *numbers, head.description]) in lines
    report = json.loads(heads("model", "--source", "s", "--target", "t", "--json"))
    assert (report["source"], report["target"], report["sentences"]) == ("s", "t", 3)
    assert report["heads"] == [asdict(head) | {"description": head.description} for head in expected]


@pytest.mark.usefixtures("texts")
def test_heads_without_targets_uses_greedy_translations() -> None:
    run = CliRunner().invoke(app, ["heads", "model", "--source", "s", "--json"])
    assert run.exit_code == 0, run.output
    assert run.stderr == "translating 3 sentences …\nmeasuring 3 sentences\n"
    report = json.loads(run.stdout)
    assert report["target"] == "the model, by greedy search"
    assert [head["entropy"] for head in report["heads"]] == pytest.approx([head.entropy for head in measured(None)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("model --source s --target short", "short ends after line 2, s after line 3; line n of the target must"),
        ("model --source empty", "empty is empty: expected sentences"),
        ("model --source blank --target blank", "no row has more than one key to attend to"),
        ("decoder --source s --target s", "--target needs an encoder-decoder model: this one is decoder-only"),
    ],
)
def test_invalid_heads_options_are_errors(arguments: str, message: str, texts: Path) -> None:
    write_model(texts / "decoder", kind="decoder")
    with pytest.raises(HeedError) as error:
        heads(*arguments.split())
    assert message in str(error.value)
