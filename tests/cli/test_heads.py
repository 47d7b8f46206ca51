import json
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heed.cli.main import app
from heed.config import SearchConfig
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
    """What is printed; mistakes are raised."""
    run = CliRunner().invoke(app, ["heads", *arguments], env={"COLUMNS": "80"}, catch_exceptions=False)
    assert run.exit_code == 0, run.output
    return run.stdout


def measured(targets: list[str] | None) -> list[HeadStatistics]:
    translator = load("model")
    of_source, of_target = translator.tokenizers
    if targets is None:
        written = [one.ids for one in translator.translate(SOURCES, search=SearchConfig(beam=1))]
    else:
        written = [tuple(ids) for ids in of_target.encode(targets)]
    return head_statistics(translator.model, batches(translator.model, of_source.encode(SOURCES), written))


@pytest.mark.usefixtures("texts")
def test_table_and_json_are_what_was_measured() -> None:
    expected = measured(TARGETS)
    printed = heads("model", "--source", "s", "--target", "t")
    assert max(map(len, printed.splitlines())) <= 80
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    for one in expected:
        edge = one.start if one.end is None else one.end
        shares = (one.previous, one.same, one.next, edge, one.sharpness, one.coverage)
        distance = [] if one.distance is None else [f"{one.distance:.1f}"]
        numbers = [
            f"{one.entropy:.2f}",
            f"{one.evenness:.2f}",
            *distance,
            *(f"{s:.2f}" for s in shares if s is not None),
        ]
        assert " ".join([f"{one.path}.{one.head}", *numbers, one.description]) in lines
    found = json.loads(heads("model", "--source", "s", "--target", "t", "--json"))
    assert (found["source"], found["target"], found["sentences"]) == ("s", "t", 3)
    assert found["heads"] == [asdict(one) | {"description": one.description} for one in expected]


@pytest.mark.usefixtures("texts")
def test_heads_without_targets_uses_greedy_translations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heed.decoding.engine.MAX_EXTRA_TOKENS", 2)  # an untrained model never ends
    run = CliRunner().invoke(app, ["heads", "model", "--source", "s", "--json"])
    assert run.exit_code == 0, run.output
    assert run.stderr == "translating 3 sentences …\nmeasuring 3 sentences\n"
    found = json.loads(run.stdout)
    assert found["target"] == "the model, by greedy search"
    assert [one["entropy"] for one in found["heads"]] == pytest.approx([one.entropy for one in measured(None)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("model --source s --target short", "short ended after 2 lines, s has 3; line n of one must translate line n"),
        ("model --source empty", "empty is empty: expected sentences"),
        ("model --source blank --target blank", "no row has more than one key to attend to"),
        ("decoder --source s --target s", "--target needs an encoder-decoder model: this one is decoder-only"),
    ],
)
def test_mistakes_in_heads_options_are_errors(arguments: str, message: str, texts: Path) -> None:
    write_model(texts / "decoder", kind="decoder")
    with pytest.raises(HeedError) as error:
        heads(*arguments.split())
    assert message in str(error.value)
