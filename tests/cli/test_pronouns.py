import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heed.cli.main import app
from heed.errors import HeedError
from tests.cli.untrained import write_model


def pronouns(*arguments: str) -> str:
    """Run `heed pronouns` in this process and return its standard output; exceptions are raised."""
    run = CliRunner().invoke(app, ["pronouns", *arguments], env={"COLUMNS": "80"}, catch_exceptions=False)
    assert run.exit_code == 0, run.output
    assert run.stderr == "measuring 4 sentences …\n"
    return run.stdout


def test_the_tables_have_the_numbers_of_json(tmp_path: Path) -> None:
    options = (str(write_model(tmp_path / "model")), "--sentences", "4", "--seed", "5")
    report = json.loads(pronouns(*options, "--json"))
    printed = pronouns(*options)
    assert max(map(len, printed.splitlines())) <= 80
    lines = [" ".join(line.split()) for line in printed.splitlines()]

    def rate(interval: dict[str, float]) -> str:
        assert interval["of"] == 4
        return f"{interval['share']:.1%} {interval['low']:.1%} to {interval['high']:.1%}"

    assert report["sentences"] == 4
    assert [(finding["looker"], finding["layer"], finding["head"]) for finding in report["findings"]] == [
        (looker, 1, head) for looker in ("it", "adjective") for head in (1, 2)
    ]
    for finding in report["findings"]:
        weights = f"{finding['on_antecedent']:.3f} {finding['on_other']:.3f}"
        name = f"{finding['looker']} {finding['layer']}.{finding['head']}"
        assert f"{name} {rate(finding['trained'])} {finding['untrained']['share']:.1%} {weights}" in lines
    for glance in report["glances"]:
        weights = " ".join(f"{glance[word]:.3f}" for word in ("it", "antecedent", "other", "adjective"))
        assert f"{glance['layer']}.{glance['head']} {weights}" in lines
    assert [removal["removed"] for removal in report["removals"]] == [
        "nothing",
        "antecedent",
        "other noun",
        "adjective",
    ]
    for removal in report["removals"]:
        assert f"{removal['removed']} {rate(removal['forced'])} {rate(removal['written'])}" in lines


@pytest.mark.parametrize(
    ("kind", "count", "message"),
    [
        ("encoder-decoder", "3", "expected an even number of sentences, one half per antecedent, found 3"),
        ("decoder", "4", "model is a decoder-only model, trained with task = 'translate', and does not translate"),
    ],
)
def test_invalid_pronouns_options_are_errors(kind: str, count: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(HeedError) as error:
        pronouns(str(write_model(tmp_path / "model", kind=kind)), "--sentences", count)
    assert message in str(error.value)
