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
from tests.training.examples import RecordingListener, make_run

SAMPLE = ("*a* <b>", "# c", "d_e_f")


def reject_constant(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_null_in_strict_json(tmp_path: Path, loss: float) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path, after_step=0).write({"step": 1, "loss": loss, "rate": 0.5})
    assert json.loads(path.read_text(), parse_constant=reject_constant) == {"step": 1, "loss": None, "rate": 0.5}
    assert read_journal(path) == [{"step": 1, "loss": None, "rate": 0.5}]


def test_nan_in_an_old_journal_is_read_as_null_and_rewritten_on_resume(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"step": 1, "loss": NaN}\n{"step": 2, "loss": -Infinity}\n')
    assert read_journal(path) == [{"step": 1, "loss": None}, {"step": 2, "loss": None}]
    Journal(path, after_step=1)
    assert path.read_text() == '{"step": 1, "loss": null}\n'


@pytest.mark.parametrize("text", ["été 🦙", "one\u2028two\u2029three\x85four", "a\nb\r\nc\x0bd\x1ce", '"\\'])
def test_any_sample_text_survives_the_journal(tmp_path: Path, text: str) -> None:
    entry: dict[str, Any] = {"step": 1, "validation_loss": 2.5, "bleu": None, "sample": [text, text, text]}
    journal = Journal(tmp_path / "journal.jsonl", after_step=0)
    journal.write(entry)
    journal.write({"step": 2})
    assert read_journal(tmp_path / "journal.jsonl") == [entry, {"step": 2}]


def test_an_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, after_step=0)
    journal.write({"step": 1, "sample": "été"})
    complete = len(path.read_bytes())
    journal.write({"step": 2, "sample": "été"})
    content = path.read_bytes()
    for cut in range(complete, len(content)):
        path.write_bytes(content[:cut])
        assert read_journal(path) == [{"step": 1, "sample": "été"}], content[:cut]
    assert read_journal(tmp_path / "missing") == []


def test_resuming_drops_the_lines_after_the_step(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, after_step=0)
    for step in (1, 2, 3):
        journal.write({"step": step, "loss": float(step)})
    Journal(path, after_step=2).write({"step": 3, "loss": 9.0})
    assert [line["loss"] for line in read_journal(path)] == [1.0, 2.0, 9.0]


@pytest.mark.parametrize("line", ["{oops", "[1]", '{"loss": 1.0}', '{"step": "1"}', ""])
def test_a_damaged_line_is_reported_with_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n{{"step": 2}}\n')
    with pytest.raises(FolderError) as caught:
        read_journal(path)
    assert str(caught.value) == f"{path}:2: expected a JSON object with a step, found {line!r}"


def events(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder / "tensorboard")).Reload()


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events(folder).Scalars(tag)]


def in_float32(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    return [(step, float(np.float32(value))) for step, value in points]


def test_tensorboard_has_the_scalars_of_the_journal(tmp_path: Path) -> None:
    validations = iter([Validation(3.0, 12.5, SAMPLE), Validation(2.5), Validation(2.0, 20.25, SAMPLE)])
    run = replace(make_run(tmp_path, validate_every=2), validate=lambda _model, _step: next(validations))
    listener = tensorboard_listener(tmp_path, after_step=0)
    assert isinstance(listener, Listener)
    run_training(run, Progress(), listener)
    del listener  # closes it
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


def test_the_tensorboard_sample_is_a_markdown_code_block(tmp_path: Path) -> None:
    listener = tensorboard_listener(tmp_path, after_step=0)
    assert listener is not None
    listener.validation(7, Validation(1.0, None, SAMPLE), True)  # noqa: FBT003
    (event,) = events(tmp_path).Tensors("sample/text_summary")  # a validation is on disk at once
    assert event.step == 7
    (text,) = make_ndarray(event.tensor_proto)
    assert text.decode() == "    source    *a* <b>\n    reference # c\n    output    d_e_f"


@pytest.mark.parametrize("killed", [False, True])
def test_a_resumed_run_has_each_point_once_in_tensorboard(tmp_path: Path, killed: bool) -> None:
    def take(listener: Listener | None, steps: range, loss: float) -> None:
        assert listener is not None
        for step in steps:
            listener.step(StepReport(step, 0, loss, 0.1, 10, 0.5))
        if killed:
            listener.validation(steps[-1], Validation(loss), False)  # noqa: FBT003 - flushed, and never closed
            unclosed.append(listener)

    unclosed: list[Listener] = []
    take(tensorboard_listener(tmp_path, after_step=0), range(1, 7), 3.0)
    take(tensorboard_listener(tmp_path, after_step=4), range(5, 9), 2.0)
    take(tensorboard_listener(tmp_path, after_step=8), range(9, 10), 1.0)
    expected = [(step, 3.0 if step < 5 else 2.0 if step < 9 else 1.0) for step in range(1, 10)]
    assert scalars(tmp_path, "loss/training") == expected


def test_tensorboard_gets_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    listener = tensorboard_listener(tmp_path, after_step=0)
    assert listener is not None
    listener.step(StepReport(1, 0, math.nan, 0.1, 10, 0.5))
    listener.note("step 1: the loss is nan")
    del listener
    ((step, value),) = scalars(tmp_path, "loss/training")
    assert step == 1
    assert math.isnan(value)


def test_tensorboard_does_not_change_the_trained_weights(tmp_path: Path) -> None:
    weights = []
    for name in ("tensorboard", "none"):
        (tmp_path / name).mkdir()
        listener = tensorboard_listener(tmp_path / name, after_step=0) if name == "tensorboard" else RecordingListener()
        assert listener is not None
        run = make_run(tmp_path / name, [3.0, 2.0], validate_every=1, max_steps=2)
        run_training(run, Progress(), listener)
        weights.append(run.model.state_dict())
    assert all(torch.equal(weight, weights[1][name]) for name, weight in weights[0].items())


def test_without_tensorboard_there_is_no_listener_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert tensorboard_listener(tmp_path, after_step=0) is None
    assert list(tmp_path.iterdir()) == []
