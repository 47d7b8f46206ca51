"""What is known of the steps that were taken, written down as it becomes known.

A GPU is asked for a step before the loss of the one before it is read, so that it never waits for us; so the last step
may still be under way when the loop goes on. Whoever needs to know everything asks to `settle`.
"""

import math
import time
from collections import deque
from dataclasses import replace

from heed.errors import TrainingError
from heed.training.checkpoint import Progress, way_out
from heed.training.journal import Journal
from heed.training.run import Listener, Run, StepReport
from heed.training.step import Taken

_PATIENCE_WITH_NONSENSE = 5  # steps in a row whose loss or gradient is not finite


class Ledger:
    """Tells journal and listener of each step, in order, and counts those that were skipped."""

    def __init__(self, run: Run, journal: Journal | None, listener: Listener) -> None:
        self._run, self._journal, self._listener = run, journal, listener
        self._waiting: deque[tuple[Progress, Taken, float]] = deque()
        self._last = 0.0
        self.nonsense = 0  # steps in a row, up to the last that is known

    def add(self, progress: Progress, taken: Taken, began: float) -> None:
        """A step that was asked for at the time `began`, and where the run stands after it."""
        self._waiting.append((progress, taken, began))

    def settle(self, progress: Progress, *, but: int = 0) -> Progress:
        """Read the losses of all steps but so many of the last; returns the progress that counts those skipped."""
        skipped = progress.skipped
        while len(self._waiting) > but:
            skipped += self._read(*self._waiting.popleft())
        return replace(progress, skipped=skipped)

    def _read(self, progress: Progress, taken: Taken, began: float) -> bool:
        step, loss, norm = progress.step, taken.loss(), taken.gradient_norm()
        now = time.monotonic()
        report = StepReport(step, progress.epoch, loss, taken.rate, taken.tokens, now - max(began, self._last))
        self._last = now
        if self._journal is not None:
            entry = {"step": step, "loss": loss, "gradient_norm": norm, "rate": taken.rate, "tokens": taken.tokens}
            self._journal.write({**entry, "seconds": report.seconds})
        self._listener.step(report)
        self.nonsense = 0 if math.isfinite(loss) and math.isfinite(norm) else self.nonsense + 1
        if self.nonsense:
            self._complain(step, f"the gradient's norm is {norm}" if math.isfinite(loss) else f"the loss is {loss}")
        return bool(self.nonsense)

    def _complain(self, step: int, what: str) -> None:
        self._listener.note(f"step {step}: {what}, so the step was skipped")
        if self.nonsense >= _PATIENCE_WITH_NONSENSE:
            raise TrainingError(
                f"the loss or the gradient was not finite in {self.nonsense} steps in a row, up to step {step}: "
                f"{what}; {way_out(self._run.folder)}"
            )
