"""Logs training steps and validations to `journal.jsonl`, TensorBoard and a `Listener`.

Enters: reports of steps and validations. Leaves: one JSON object per line in `RUN/journal.jsonl`, TensorBoard events in
`RUN/tensorboard`, calls of a `Listener`. The JSON is strict: a number that is not finite is written as null. Imports no
torch, unless TensorBoard is installed.
"""

import json
import logging
import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from heed.artifacts.writing import fsync, write_and_sync
from heed.errors import FolderError

JOURNAL = "journal.jsonl"
METRICS = {"bleu": "BLEU {:.1f}", "bits_per_byte": "{:.3f} bits per byte", "accuracy": "accuracy {:.1f} %"}
_ENOUGH_OUTPUTS = 100
_FLUSH_SECONDS = 10  # of TensorBoard events: as much may be lost when the process is killed
_LOG = logging.getLogger("heed.training")
_LOG.addHandler(logging.NullHandler())  # listeners show warnings; the logger prints them only where it is configured


@dataclass(frozen=True)
class StepReport:
    """One optimiser step: mean loss per target token, learning rate, number of target tokens, seconds."""

    step: int
    epoch: int
    loss: float
    rate: float
    tokens: int
    seconds: float
    gradient_norm: float = math.nan
    max_steps: int = 0


@dataclass(frozen=True)
class Validation:
    """A model's loss and score on validation text."""

    loss: float
    score: float | None = None  # by the task's metric
    sample: tuple[str, str, str] | None = None  # source, reference, output
    metric: str = "bleu"  # one of METRICS
    outputs: int = 0  # translations made for the score
    truncated: int = 0  # of these, translations that the length limit ended
    repetitive: int = 0  # of these, translations that repeat themselves, unlike their reference
    exact: int = 0  # of these, translations equal to their reference

    @property
    def is_exact(self) -> bool:
        """Whether every output equals its reference, and there are enough of them for that to mean something."""
        return self.exact == self.outputs >= _ENOUGH_OUTPUTS


class Listener:
    """Callbacks of a run: override the methods of interest, the others do nothing."""

    def work(self, doing: str, done: int, total: int | None) -> None:
        """Called while text is read or tokenised: the activity, the pairs done, and their total where it is known."""

    def step(self, report: StepReport) -> None:
        """Called after each optimiser step."""

    def validation(self, step: int, result: Validation, best: bool) -> None:
        """Called after each validation. best: whether it is the best so far."""

    def note(self, message: str) -> None:
        """Called with a line of information for the user."""

    def warning(self, message: str) -> None:
        """Called with a line about a possible problem; calls `note` unless overridden."""
        self.note(message)


class WarningLog(Listener):
    """Sends warnings to the logger `heed.training`."""

    def warning(self, message: str) -> None:
        _LOG.warning(message)


class Listeners(Listener):
    """Forwards to several listeners."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def work(self, doing: str, done: int, total: int | None) -> None:
        for listener in self._listeners:
            listener.work(doing, done, total)

    def step(self, report: StepReport) -> None:
        for listener in self._listeners:
            listener.step(report)

    def validation(self, step: int, result: Validation, best: bool) -> None:
        for listener in self._listeners:
            listener.validation(step, result, best)

    def note(self, message: str) -> None:
        for listener in self._listeners:
            listener.note(message)

    def warning(self, message: str) -> None:
        for listener in self._listeners:
            listener.warning(message)


class Journal:
    """`journal.jsonl` of a run. Resuming from a step drops the lines after it."""

    def __init__(self, path: Path, after_step: int) -> None:
        self._path = path
        kept = [line for line in read_journal(path) if line["step"] <= after_step]
        with _write_errors(path):
            building = path.with_suffix(".writing")
            write_and_sync(building, "".join(_line(entry) for entry in kept).encode())
            building.replace(path)

    def write(self, entry: dict[str, Any]) -> None:
        with _write_errors(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(_line(entry))

    def sync(self) -> None:
        """Flush all lines to disk, before the checkpoint that follows them."""
        with _write_errors(self._path):
            fsync(self._path)
            fsync(self._path.parent)


def read_journal(path: Path) -> list[dict[str, Any]]:
    """All complete lines, parsed; an incomplete last line, from a killed process, is ignored."""
    if not path.exists():
        return []
    # Bytes, not text: the last line may end within a character, and str.splitlines splits at U+2028, which JSON allows.
    complete, _, _ = path.read_bytes().rpartition(b"\n")
    return [_entry(path, number, line) for number, line in enumerate(complete.splitlines(), start=1)]


def _entry(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line, parse_constant=lambda _: None)  # NaN, in journals of older versions
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict) or not isinstance(entry.get("step"), int):
        start = line[:40].decode(errors="replace")
        raise FolderError(f"{path}:{number}: expected a JSON object with a step, found {start!r}")
    return entry


def _line(entry: dict[str, Any]) -> str:
    strict = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in entry.items()
    }
    return json.dumps(strict, ensure_ascii=False, allow_nan=False) + "\n"


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FolderError(f"{path} cannot be written: {error.strerror or error}") from None


def tensorboard_listener(folder: Path, after_step: int) -> Listener | None:
    """A listener that writes to the run's `tensorboard` folder; None where TensorBoard is not installed."""
    return None if find_spec("tensorboard") is None else TensorBoard(folder / "tensorboard", after_step)


class TensorBoard(Listener):
    """Writes the journal's numbers as TensorBoard scalars and text. Resuming from a step hides what came after it."""

    def __init__(self, folder: Path, after_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - fails without the package

        self._writer = SummaryWriter(str(folder), purge_step=after_step + 1, flush_secs=_FLUSH_SECONDS)
        weakref.finalize(self, self._writer.close)  # so that no caller has to close it

    def step(self, report: StepReport) -> None:
        self._writer.add_scalar("loss/training", report.loss, report.step)
        self._writer.add_scalar("learning_rate", report.rate, report.step)
        self._writer.add_scalar("tokens_per_second", report.tokens / report.seconds, report.step)

    def validation(self, step: int, result: Validation, best: bool) -> None:  # noqa: ARG002 - the listener's signature
        self._writer.add_scalar("loss/validation", result.loss, step)
        if result.score is not None:
            self._writer.add_scalar(result.metric, result.score, step)
        if result.sample is not None:
            named = zip(("source", "reference", "output"), result.sample, strict=True)
            # TensorBoard renders Markdown: four spaces make a code block, which keeps the text as it is.
            self._writer.add_text("sample", "\n".join(f"    {name:<10}{text}" for name, text in named), step)
        self._writer.flush()
