import json
import math
from pathlib import Path
from typing import Any

import pytest

from heed.errors import FolderError
from heed.training.step_log import Journal, read_journal


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_null_in_strict_json(tmp_path: Path, loss: float) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path, after_step=0).write({"step": 1, "loss": loss, "rate": 0.5})
    assert json.loads(path.read_text(), parse_constant=refuse) == {"step": 1, "loss": None, "rate": 0.5}
    assert read_journal(path) == [{"step": 1, "loss": None, "rate": 0.5}]


def test_a_journal_that_says_nan_is_read_and_made_strict_on_resume(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"step": 1, "loss": NaN}\n{"step": 2, "loss": -Infinity}\n')
    assert read_journal(path) == [{"step": 1, "loss": None}, {"step": 2, "loss": None}]
    Journal(path, after_step=1)
    assert path.read_text() == '{"step": 1, "loss": null}\n'


@pytest.mark.parametrize("text", ["été 🦙", "one\u2028two\u2029three\x85four", "a\nb\r\nc\x0bd\x1ce", '"\\'])
def test_any_text_of_a_sample_comes_back(tmp_path: Path, text: str) -> None:
    entry: dict[str, Any] = {"step": 1, "validation_loss": 2.5, "bleu": None, "sample": [text, text, text]}
    journal = Journal(tmp_path / "journal.jsonl", after_step=0)
    journal.write(entry)
    journal.write({"step": 2})
    assert read_journal(tmp_path / "journal.jsonl") == [entry, {"step": 2}]


def test_a_line_cut_off_anywhere_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, after_step=0)
    journal.write({"step": 1, "sample": "été"})
    whole = len(path.read_bytes())
    journal.write({"step": 2, "sample": "été"})
    content = path.read_bytes()
    for cut in range(whole, len(content)):
        path.write_bytes(content[:cut])
        assert read_journal(path) == [{"step": 1, "sample": "été"}], content[:cut]
    assert read_journal(tmp_path / "missing") == []


def test_continuing_forgets_what_came_after_the_step(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, after_step=0)
    for step in (1, 2, 3):
        journal.write({"step": step, "loss": float(step)})
    Journal(path, after_step=2).write({"step": 3, "loss": 9.0})
    assert [line["loss"] for line in read_journal(path)] == [1.0, 2.0, 9.0]


@pytest.mark.parametrize("line", ["{oops", "[1]", '{"loss": 1.0}', '{"step": "1"}', ""])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n{{"step": 2}}\n')
    with pytest.raises(FolderError) as caught:
        read_journal(path)
    assert str(caught.value) == f"{path}:2: expected a JSON object with a step, found {line!r}"
