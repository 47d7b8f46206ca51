"""The trainer: runs training steps, and logs, validates, saves checkpoints and handles interrupts.

Enters: a run and its progress. Leaves: checkpoints and a journal in the run's folder. A run that is killed at any
moment resumes from its last checkpoint to the same weights. All processes of a group run this loop and take the same
decisions at the same step; rank 0 writes. Knows nothing of text or terminals.
"""

import math
import signal
import threading
import time
from collections import deque
from contextlib import closing
from dataclasses import replace
from types import FrameType

import torch

from heed.artifacts.checkpoint import Progress, prune_checkpoints, recovery_hint
from heed.errors import TrainingError
from heed.model.torch_state import torch_defaults
from heed.training.run import Run
from heed.training.step_log import JOURNAL, Journal, Listener, StepReport
from heed.training.steps import PendingStep, launch_steps
from heed.training.tasks.base import Validate

_MAX_SKIPPED_IN_A_ROW = 5  # steps whose loss or gradient is not finite, before the run ends


@torch_defaults()
@torch.enable_grad()
def run_training(run: Run, progress: Progress, listener: Listener) -> Progress:
    """Train from `progress` to `max_steps` or to an early stop by validation or time; returns the final progress.

    An interrupt (Ctrl-C or SIGTERM) lets the step finish, saves a checkpoint and then raises KeyboardInterrupt.
    """
    settings = run.config.training
    deadline = time.monotonic() + 60 * (settings.max_minutes or math.inf)
    out_of_time = False
    journal = Journal(run.folder / JOURNAL, after_step=progress.step) if run.group.is_first else None
    reporter = StepReporter(run, journal, listener)
    progress = replace(progress, previous=progress.step)
    with _Interrupts() as interrupts, closing(launch_steps(run, run.gradients(), progress)) as steps:
        while progress.step < settings.max_steps and not out_of_time and _early_stop(run, progress) is None:
            pending = next(steps)
            step = pending.step
            epoch, position = pending.after
            progress = replace(progress, step=step, epoch=epoch, position=position)
            reporter.add(pending)
            checkpoint_due = step % settings.checkpoint_every == 0
            out_of_time = settings.max_minutes is not None and run.group.sum(time.monotonic() > deadline)[0] > 0
            validation_due = step % settings.validate_every == 0 or step == settings.max_steps or out_of_time
            read_now = checkpoint_due or validation_due or not run.reads_losses_late
            progress = reporter.read(progress, except_last=0 if read_now else 1)
            improved = False
            if validation_due and run.validate is not None:
                progress, improved = _validate(run, run.validate, progress, journal, listener)
            interrupted = run.group.sum(interrupts.requested)[0] > 0
            at_end = step == settings.max_steps or out_of_time or _early_stop(run, progress) is not None
            # After skipped steps there is nothing new to save.
            if improved or interrupted or at_end or (checkpoint_due and not reporter.skipped_in_a_row):
                progress = reporter.read(progress)
                _save(run, progress, journal)
                progress = replace(progress, previous=step)
            if interrupted:
                listener.note(f"interrupted after step {step}: checkpoint saved, continue with --resume (resume=True)")
                raise KeyboardInterrupt
    reason = _early_stop(run, progress) or (out_of_time and f"training.max_minutes = {settings.max_minutes:g} are over")
    if reason and progress.step < settings.max_steps:
        listener.note(f"stopping before max_steps = {settings.max_steps:,}: {reason}")
    return progress


class StepReporter:
    """Reports each step to journal and listener as soon as its loss is known, in order; counts skipped steps."""

    def __init__(self, run: Run, journal: Journal | None, listener: Listener) -> None:
        self._run, self._journal, self._listener = run, journal, listener
        self._pending: deque[PendingStep] = deque()
        self._last_read = 0.0
        self.skipped_in_a_row = 0

    def add(self, pending: PendingStep) -> None:
        self._pending.append(pending)

    def read(self, progress: Progress, *, except_last: int = 0) -> Progress:
        """Wait for and report the pending steps, except the last few; returns progress with skipped steps counted."""
        skipped = progress.skipped
        while len(self._pending) > except_last:
            skipped += self._report(self._pending.popleft())
        return replace(progress, skipped=skipped)

    def _report(self, pending: PendingStep) -> bool:
        step, tokens, rate = pending.step, pending.tokens, pending.rate
        loss, norm = pending.loss(), pending.gradient_norm()
        now = time.monotonic()
        seconds = now - max(pending.began, self._last_read)
        self._last_read = now
        if self._journal is not None:
            entry = {"step": step, "loss": loss, "gradient_norm": norm, "rate": rate, "tokens": tokens}
            self._journal.write({**entry, "seconds": seconds})
        max_steps = self._run.config.training.max_steps
        epoch, _ = pending.after
        self._listener.step(StepReport(step, epoch, loss, rate, tokens, seconds, norm, max_steps))
        is_skipped = not (math.isfinite(loss) and math.isfinite(norm))
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if is_skipped else 0
        if is_skipped:
            self._report_skipped(
                step, f"the gradient's norm is {norm}" if math.isfinite(loss) else f"the loss is {loss}"
            )
        return is_skipped

    def _report_skipped(self, step: int, reason: str) -> None:
        """Warn about a skipped step; after too many in a row, raise an error that ends the run."""
        self._listener.warning(f"step {step}: {reason}, so the step was skipped")
        if self.skipped_in_a_row >= _MAX_SKIPPED_IN_A_ROW:
            raise TrainingError(
                f"the loss or the gradient was not finite in {self.skipped_in_a_row} steps in a row, up to step "
                f"{step}: {reason}; {recovery_hint(self._run.folder)}"
            )


def _save(run: Run, progress: Progress, journal: Journal | None) -> None:
    if journal is not None:
        journal.sync()
    run.save(progress)
    if run.group.is_first:  # rank 0 wrote it: the other processes may not see the new checkpoint yet
        prune_checkpoints(run.folder, run.config.training.keep_last, progress.best_step, progress.step)


def _validate(
    run: Run, validate: Validate, progress: Progress, journal: Journal | None, listener: Listener
) -> tuple[Progress, bool]:
    """Validate and report; returns the new progress, and whether this is the best model so far."""
    with run.inference_weights():
        result = validate(run.model, progress.step)
    settings = run.config.training
    after = progress.validated(
        result.loss,
        result.score,
        by_score=settings.best_by != "loss",
        min_delta=settings.min_delta,
        is_exact=result.is_exact,
    )
    improved = after.best_step == progress.step
    entry = {"step": progress.step, "validation_loss": result.loss, result.metric: result.score, "best": improved}
    if result.outputs:
        entry |= {name: getattr(result, name) for name in ("outputs", "truncated", "repetitive", "exact")}
    if journal is not None:
        journal.write({**entry, "sample": result.sample})
    listener.validation(progress.step, result, improved)
    return after, improved


def _early_stop(run: Run, progress: Progress) -> str | None:
    """Why training stops before its last step; None where it goes on."""
    settings = run.config.training
    if progress.step >= settings.max_steps:
        return None
    if settings.patience is not None and progress.stale >= settings.patience:
        return f"no improvement of {settings.min_delta:g} or more in training.patience = {progress.stale} validations"
    if settings.stop_when_exact is not None and progress.exact >= settings.stop_when_exact:
        return f"every output was right in training.stop_when_exact = {progress.exact} validations in a row"
    return None


class _Interrupts:
    """A context in which the first Ctrl-C or SIGTERM only sets `requested`; a second one raises at once.

    Python handles signals in the main thread only: in another thread this changes nothing.
    """

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> "_Interrupts":
        signals = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
        self._handlers = {number: signal.signal(number, self._request) for number in signals}
        return self

    def _request(self, number: int, _frame: FrameType | None) -> None:
        self.requested = True
        signal.signal(number, signal.default_int_handler)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
