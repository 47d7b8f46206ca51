import json
from pathlib import Path

import pytest

from heed.interop.engine_race import Timed, times_faster
from tests.cli.command import heed
from tests.interop.engine_models import TEXTS, folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("bench") / "model")


def test_engines_are_compared_on_ones_own_model_and_text(model: Path) -> None:
    lines = "".join(f"{text}\n" for text in (*TEXTS, "", "left out"))
    options = ["--sentences", "6", "--beam", "1", "--rounds", "2", "--threads", "2", "--engine", "onnx", "--json"]
    done = heed("bench", "engines", str(model), "-", *options, stdin=lines)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [told[name] for name in ("model", "sentences", "beam", "rounds")] == [str(model), 5, 1, 2]
    assert [(row["engine"], row["threads"]) for row in told["engines"]] == [("heed", 2), ("onnx", 2)]
    heeds, onnx = told["engines"]
    assert heeds["times_faster"] == heeds["times_faster_alone"] == heeds["same_output"] == onnx["same_output"] == 1.0
    assert min(onnx[name] for name in ("sentences_per_second", "seconds_alone", "times_faster")) > 0


def test_the_comparison_is_shown_as_a_table(model: Path) -> None:
    done = heed("bench", "engines", str(model), "-", "--engine", "heed", "--rounds", "1", stdin="A dog.\n")
    assert done.returncode == 0, done.stderr
    [heading, _, row] = done.stdout.splitlines()
    assert heading.split() == [
        "engine",
        "sentences/s",
        "×",
        "heed",
        "one",
        "alone,",
        "ms",
        "×",
        "heed",
        "same",
        "output",
    ]
    assert row.split()[0] == "heed"
    assert row.split()[-2:] == ["100.0", "%"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["MODEL", __file__, "--engine", "onx"], "error: unknown engine 'onx': did you mean 'onnx'"),
        (["MODEL", "-"], "error: - is empty: there is nothing to translate"),
        (["MODEL", "none.txt"], "error: none.txt: cannot be opened"),
        (["nowhere", __file__, "--engine", "heed"], "error: nowhere is not a model folder"),
    ],
)
def test_what_cannot_be_measured_is_said(arguments: list[str], message: str, model: Path) -> None:
    done = heed("bench", "engines", *(str(model) if one == "MODEL" else one for one in arguments))
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_ratios_are_of_rounds_next_to_each_other_and_their_median_counts() -> None:
    assert times_faster([1.0, 2.0, 4.0], [2.0, 4.0, 40.0]) == 2.0
    assert Timed("onnx", 1, ("a", "b"), (), ()).same_as(Timed("heed", 1, ("a", "c"), (), ())) == 0.5
