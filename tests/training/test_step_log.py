import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from heed.artifacts.checkpoint import Progress
from heed.errors import FolderError
from heed.training.step_log import Journal, Listener, StepReport, Validation, read_journal, tensorboard_listener
from heed.training.trainer import run_training
from tests.training.test_trainer import Notes, make_run

SAMPLE = ("*a* <b>", "# c", "d_e_f")


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


def written(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder / "tensorboard")).Reload()


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in written(folder).Scalars(tag)]


def in_float32(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    return [(step, float(np.float32(value))) for step, value in points]


def test_tensorboard_shows_what_the_journal_says(tmp_path: Path) -> None:
    tried = iter([Validation(3.0, 12.5, SAMPLE), Validation(2.5), Validation(2.0, 20.25, SAMPLE)])
    run = replace(make_run(tmp_path, validate_every=2), validate=lambda _model, _step: next(tried))
    listener = tensorboard_listener(tmp_path, after_step=0)
    assert isinstance(listener, Listener)
    run_training(run, Progress(), listener)
    del listener  # nobody else has to close it
    journal = read_journal(tmp_path / "journal.jsonl")
    steps, tests = ([line for line in journal if key in line] for key in ("loss", "validation_loss"))
    assert len(steps) == 6
    for tag, expected in {
        "loss/training": [(line["step"], line["loss"]) for line in steps],
        "learning_rate": [(line["step"], line["rate"]) for line in steps],
        "tokens_per_second": [(line["step"], line["tokens"] / line["seconds"]) for line in steps],
        "loss/validation": [(line["step"], line["validation_loss"]) for line in tests],
        "bleu": [(line["step"], line["bleu"]) for line in tests if line["bleu"] is not None],
    }.items():
        assert scalars(tmp_path, tag) == in_float32(expected), tag


def test_the_sample_is_text_that_markdown_leaves_alone(tmp_path: Path) -> None:
    listener = tensorboard_listener(tmp_path, after_step=0)
    assert listener is not None
    listener.validation(7, Validation(1.0, None, SAMPLE), True)  # noqa: FBT003
    (event,) = written(tmp_path).Tensors("sample/text_summary")  # a validation is on disk at once
    assert event.step == 7
    (text,) = make_ndarray(event.tensor_proto)
    assert text.decode() == "    source *a* <b>\n    wanted # c\n    got    d_e_f"


@pytest.mark.parametrize("killed", [False, True])
def test_a_resumed_run_has_no_point_twice(tmp_path: Path, killed: bool) -> None:
    def take(listener: Listener | None, steps: range, loss: float) -> None:
        assert listener is not None
        for step in steps:
            listener.step(StepReport(step, 0, loss, 0.1, 10, 0.5))
        if killed:
            listener.validation(steps[-1], Validation(loss), False)  # noqa: FBT003 - flushed, and never closed
            left.append(listener)

    left: list[Listener] = []
    take(tensorboard_listener(tmp_path, after_step=0), range(1, 7), 3.0)
    take(tensorboard_listener(tmp_path, after_step=4), range(5, 9), 2.0)
    take(tensorboard_listener(tmp_path, after_step=8), range(9, 10), 1.0)
    expected = [(step, 3.0 if step < 5 else 2.0 if step < 9 else 1.0) for step in range(1, 10)]
    assert scalars(tmp_path, "loss/training") == expected


def test_a_loss_that_is_not_finite_is_passed_on(tmp_path: Path) -> None:
    listener = tensorboard_listener(tmp_path, after_step=0)
    assert listener is not None
    listener.step(StepReport(1, 0, math.nan, 0.1, 10, 0.5))
    listener.note("step 1: the loss is nan")
    del listener
    ((step, value),) = scalars(tmp_path, "loss/training")
    assert step == 1
    assert math.isnan(value)


def test_watching_changes_no_bit_of_the_model(tmp_path: Path) -> None:
    weights = []
    for name in ("watched", "alone"):
        (tmp_path / name).mkdir()
        listener = tensorboard_listener(tmp_path / name, after_step=0) if name == "watched" else Notes()
        assert listener is not None
        run = make_run(tmp_path / name, [3.0, 2.0, 1.0], validate_every=2)
        run_training(run, Progress(), listener)
        weights.append(run.model.state_dict())
    assert all(torch.equal(weight, weights[1][name]) for name, weight in weights[0].items())


def test_without_the_package_there_is_no_listener_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert tensorboard_listener(tmp_path, after_step=0) is None
    assert list(tmp_path.iterdir()) == []
