"""What a person sees while a model is trained: a live bar in a terminal, plain lines elsewhere."""

import math
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from heed.training.step_log import METRICS, Listener, StepReport, Validation

_SECONDS = 10.0  # between plain lines


class Watch(Listener):
    """Shows the work on text, then the training. Everything goes to standard error."""

    def __init__(self, *, silent: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False, quiet=silent)
        self._live = self._console.is_terminal and not silent
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
        self._progress = Progress(*columns, TimeRemainingColumn(), console=self._console, disable=not self._live)
        self._bar = self._progress.add_task("", state="", total=None)
        self._doing = ""
        self._printed = time.monotonic()
        self._speed = 0.0
        self._loss, self._losses = 0.0, 0  # an exponential mean, and of how many
        self._max_steps: int | None = None

    def __enter__(self) -> "Watch":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def work(self, doing: str, done: int, total: int | None) -> None:
        """Show what is being done, and how many pairs are done."""
        if doing != self._doing and not self._live:
            self.note(f"{doing} …")
        self._doing = doing
        self._progress.update(self._bar, description=doing, completed=done, total=total, state=f"{done:,} pairs")

    def step(self, report: StepReport) -> None:
        """Move the bar; where there is none, print a line every few seconds."""
        if report.max_steps != self._max_steps:  # the first step
            self._max_steps = report.max_steps
            self._progress.update(self._bar, total=report.max_steps, completed=report.step - 1)
        speed = report.tokens / report.seconds
        self._speed = speed if not self._speed else 0.95 * self._speed + 0.05 * speed
        if math.isfinite(report.loss):  # one that is not would stay in the mean for ever
            self._loss, self._losses = 0.98 * self._loss + 0.02 * report.loss, self._losses + 1
        loss = self._loss / (1 - 0.98**self._losses) if self._losses else report.loss  # else it would begin at 0
        state = f"mean loss {loss:.3f}  rate {report.rate:.2g}  {self._speed:,.0f} tokens/s"
        self._progress.update(
            self._bar, description=f"step {report.step:,}/{report.max_steps:,}", completed=report.step, state=state
        )
        if not self._live and time.monotonic() - self._printed > _SECONDS:
            self._printed = time.monotonic()
            self.note(f"step {report.step:,}/{report.max_steps:,}  {state}")

    def validation(self, step: int, found: Validation, best: bool) -> None:
        """Loss, score and a sample."""
        score = "" if found.score is None else f"  {METRICS[found.metric].format(found.score)}"
        self.note(f"step {step:,}  validation loss {found.loss:.4f}{score}{'  best so far' if best else ''}")
        if found.truncated:
            self.note(
                f"  {found.truncated:,} of {found.outputs:,} translations are cut off at the length limit: raise "
                "search.max_length, unless the model still repeats itself"
            )
        if found.sample is not None:
            source, reference, translation = found.sample
            for name, text in (("source", source), ("wanted", reference), ("got", translation)):
                self.note(f"  {name:<7}{text}")

    def note(self, message: str) -> None:
        """Print a line; the user's text is shown as it is, never as markup."""
        self._console.print(Text(message), soft_wrap=True)
