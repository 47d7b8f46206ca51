"""The trainer: steps, with a log, validation, checkpoints and interrupts around them.

Enters: a run and how far it has come. Leaves: checkpoints and a journal in the run's folder. A run that is cut off
anywhere goes on from its last checkpoint as if nothing had happened. All processes of a group go through this loop and
take the same decisions at the same step; the first one writes. Knows nothing of text or terminals.
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

_SKIPPED_IN_A_ROW = 5  # steps whose loss or gradient is not finite, before the run ends


@torch_defaults()
@torch.enable_grad()
def run_training(run: Run, progress: Progress, listener: Listener) -> Progress:
    """Train from `progress` to `max_steps`, or until validation stops improving; returns how far it came.

    An interrupt (Ctrl-C or SIGTERM) lets the step end, saves a checkpoint and then raises KeyboardInterrupt.
    """
    settings = run.config.training
    journal = Journal(run.folder / JOURNAL, after_step=progress.step) if run.group.is_first else None
    log = StepLog(run, journal, listener)
    progress = replace(progress, previous=progress.step)
    with _Interrupts() as interrupts, closing(launch_steps(run, run.gradients(), progress)) as steps:
        while progress.step < settings.max_steps and not _has_stalled(run, progress):
            pending = next(steps)
            step = pending.step
            progress = replace(progress, step=step, epoch=pending.after[0], position=pending.after[1])
            log.add(pending)
            checkpoint_due = step % settings.checkpoint_every == 0
            read_now = checkpoint_due or _is_validation_due(run, step) or not run.reads_losses_late
            progress = log.read(progress, but=0 if read_now else 1)
            progress, improved = _validate_if_due(run, progress, journal, listener)
            interrupted = run.group.sum(interrupts.requested)[0] > 0
            stopping = interrupted or step == settings.max_steps or _has_stalled(run, progress)
            # After steps without effect there is nothing new to keep.
            if improved or stopping or (checkpoint_due and not log.skipped_in_a_row):
                progress = log.read(progress)
                _save(run, progress, journal)
                progress = replace(progress, previous=step)
            if interrupted:
                listener.note(f"interrupted after step {step}: saved, go on with --resume")
                raise KeyboardInterrupt
    return progress


class StepLog:
    """Reports each step to journal and listener as soon as its loss is known, in order; counts skipped steps."""

    def __init__(self, run: Run, journal: Journal | None, listener: Listener) -> None:
        self._run, self._journal, self._listener = run, journal, listener
        self._pending: deque[PendingStep] = deque()
        self._last_read = 0.0
        self.skipped_in_a_row = 0

    def add(self, pending: PendingStep) -> None:
        """A step that was launched."""
        self._pending.append(pending)

    def read(self, progress: Progress, *, but: int = 0) -> Progress:
        """Wait for all steps but so many of the last; returns the progress with those skipped counted."""
        skipped = progress.skipped
        while len(self._pending) > but:
            skipped += self._report(self._pending.popleft())
        return replace(progress, skipped=skipped)

    def _report(self, pending: PendingStep) -> bool:
        step, tokens, rate, loss, norm = (
            pending.step,
            pending.tokens,
            pending.rate,
            pending.loss(),
            pending.gradient_norm(),
        )
        now = time.monotonic()
        seconds = now - max(pending.began, self._last_read)
        self._last_read = now
        if self._journal is not None:
            entry = {"step": step, "loss": loss, "gradient_norm": norm, "rate": rate, "tokens": tokens}
            self._journal.write({**entry, "seconds": seconds})
        max_steps = self._run.config.training.max_steps
        self._listener.step(StepReport(step, pending.after[0], loss, rate, tokens, seconds, norm, max_steps))
        is_skipped = not (math.isfinite(loss) and math.isfinite(norm))
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if is_skipped else 0
        if is_skipped:
            self._warn(step, f"the gradient's norm is {norm}" if math.isfinite(loss) else f"the loss is {loss}")
        return is_skipped

    def _warn(self, step: int, reason: str) -> None:
        self._listener.warning(f"step {step}: {reason}, so the step was skipped")
        if self.skipped_in_a_row >= _SKIPPED_IN_A_ROW:
            raise TrainingError(
                f"the loss or the gradient was not finite in {self.skipped_in_a_row} steps in a row, up to step "
                f"{step}: {reason}; {recovery_hint(self._run.folder)}"
            )


def _save(run: Run, progress: Progress, journal: Journal | None) -> None:
    if journal is not None:
        journal.sync()
    run.save(progress)
    if run.group.is_first:  # which wrote it: for the others the new checkpoint may not be there yet
        prune_checkpoints(run.folder, run.config.training.keep_last, progress.best_step)


def _validate_if_due(
    run: Run, progress: Progress, journal: Journal | None, listener: Listener
) -> tuple[Progress, bool]:
    if run.validate is None or not _is_validation_due(run, progress.step):
        return progress, False
    with run.inference_weights():
        found = run.validate(run.model, progress.step)
    after = progress.validated(found.loss, found.score, by_score=run.config.training.best_by != "loss")
    improved = after.best_step == progress.step
    entry = {"step": progress.step, "validation_loss": found.loss, found.metric: found.score, "best": improved}
    if found.outputs:
        entry |= {"outputs": found.outputs, "truncated": found.truncated}
    if journal is not None:
        journal.write({**entry, "sample": found.sample})
    listener.validation(progress.step, found, improved)
    return after, improved


def _is_validation_due(run: Run, step: int) -> bool:
    return step % run.config.training.validate_every == 0 or step == run.config.training.max_steps


def _has_stalled(run: Run, progress: Progress) -> bool:
    patience = run.config.training.patience
    return patience is not None and progress.stale >= patience


class _Interrupts:
    """Within it the first Ctrl-C or SIGTERM is only remembered; a second one acts at once.

    Python lets only the main thread handle signals: in another thread they go their usual way.
    """

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> "_Interrupts":
        numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
        self._before = {number: signal.signal(number, self._remember) for number in numbers}
        return self

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        self.requested = True
        signal.signal(number, signal.default_int_handler)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
