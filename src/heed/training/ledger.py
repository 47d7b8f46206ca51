"""What is known of the steps that were taken, written down as it becomes known.

A GPU is asked for a step before the loss of the one before it is read, so that it never waits for us; so the last step
may still be under way when the loop goes on. Whoever needs to know everything asks to `settle`.
"""

import math
import time
from collections import deque
from dataclasses import replace

from heed.errors import TrainingError
from heed.training.checkpoint import Progress, checkpoints
from heed.training.journal import Journal
from heed.training.run import Listener, Run, StepReport
from heed.training.step import Taken

_PATIENCE_WITH_NONSENSE = 5  # steps in a row whose loss is not finite


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
        step, loss = progress.step, taken.loss()
        now = time.monotonic()
        report = StepReport(step, progress.epoch, loss, taken.rate, taken.tokens, now - max(began, self._last))
        self._last = now
        if self._journal is not None:
            entry = {"step": step, "loss": loss, "rate": taken.rate, "tokens": taken.tokens}
            self._journal.write({**entry, "seconds": report.seconds})
        self._listener.step(report)
        self.nonsense = 0 if math.isfinite(loss) else self.nonsense + 1
        if self.nonsense:
            self._complain(step, loss)
        return bool(self.nonsense)

    def _complain(self, step: int, loss: float) -> None:
        self._listener.note(f"step {step}: the loss is {loss}, so the step was skipped")
        if self.nonsense >= _PATIENCE_WITH_NONSENSE:
            saved = checkpoints(self._run.folder)
            kept = f"the last good checkpoint is {saved[-1]}" if saved else "there is no checkpoint yet"
            raise TrainingError(
                f"the loss was not finite in {self.nonsense} steps in a row, up to step {step}; {kept}. "
                "Lower training.learning_rate_factor, or set training.clip_norm"
            )
