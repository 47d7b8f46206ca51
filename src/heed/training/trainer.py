"""The loop that learns: batches in, a better model out, and everything on disk on the way.

Enters: a run and how far it has come. Leaves: checkpoints and a journal in the run's folder. A run that is cut off
anywhere goes on from its last checkpoint as if nothing had happened. In a team every process goes through this loop
and takes the same decisions at the same step; the first one writes. Knows nothing of text, files of text or terminals.
"""

import signal
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TypeAlias

import torch

from heed.artifacts.folder import verify
from heed.errors import FolderError
from heed.model.torch_state import torch_defaults
from heed.training.batches import Batches, Numbers, ahead
from heed.training.checkpoint import Progress, checkpoint_path, newest_checkpoint, prune
from heed.training.journal import Journal
from heed.training.learner import Learner
from heed.training.ledger import Ledger
from heed.training.run import Listener, Run
from heed.training.step import Share, share, take_step

Group: TypeAlias = tuple[list[Numbers], int, tuple[int, int]]  # batches, their epoch; epoch and position after them


@torch_defaults()
@torch.enable_grad()
def train(run: Run, progress: Progress, listener: Listener) -> Progress:
    """Train from `progress` to `max_steps`, or until validation stops improving; returns how far it came.

    An interrupt (Ctrl-C or SIGTERM) ends the step, saves a checkpoint and is then raised as KeyboardInterrupt.
    """
    settings = run.config.training
    journal = Journal(run.folder / "journal.jsonl", after_step=progress.step) if run.team.is_first else None
    learner, ledger = run.learner(), Ledger(run, journal, listener)
    progress = replace(progress, previous=progress.step)
    groups = _groups(run.batches, progress, settings.accumulate * run.team.size)
    with _Interrupts() as interrupts, closing(_shares(run, learner, groups)) as shares:
        for batches, (epoch, position) in shares:
            if progress.step >= settings.max_steps or _has_stalled(run, progress):
                break
            began, step = time.monotonic(), progress.step + 1
            taken = take_step(run, learner, batches, step)
            progress = replace(progress, step=step, epoch=epoch, position=position)
            ledger.add(progress, taken, began)
            due = step % settings.checkpoint_every == 0
            known = due or _is_validation_due(run, step) or not run.is_ahead
            progress = ledger.settle(progress, but=0 if known else 1)
            progress, improved = _validate_if_due(run, progress, journal, listener)
            interrupted = run.team.add_up(interrupts.asked)[0] > 0
            stopping = interrupted or step == settings.max_steps or _has_stalled(run, progress)
            if improved or stopping or (due and not ledger.nonsense):  # what led to nonsense is not worth keeping
                progress = ledger.settle(progress)
                if journal is not None:
                    journal.sync()
                run.save(progress)
                if run.team.is_first:  # who wrote it: for the others the new checkpoint may not be there yet
                    prune(run.folder, settings.keep_last, progress.best_step)
                progress = replace(progress, previous=step)
            if interrupted:
                listener.note(f"interrupted after step {step}: saved, go on with --resume")
                raise KeyboardInterrupt
    return progress


def _groups(batches: Batches, progress: Progress, at_once: int) -> Iterator[Group]:
    """The batches of each step from here on, their epoch, and the epoch and position after them.

    The last step of an epoch may have fewer.
    """
    epoch, position = progress.epoch, progress.position
    while True:
        order = batches.epoch(epoch)
        for start in range(position, len(order), at_once):
            group = order[start : start + at_once]
            done = start + len(group) == len(order)
            yield group, epoch, (epoch + 1, 0) if done else (epoch, start + len(group))
        epoch, position = epoch + 1, 0


def _shares(run: Run, learner: Learner, groups: Iterator[Group]) -> Generator[tuple[list[Share], tuple[int, int]]]:
    """What this process learns from at each step, and where it stands after it.

    Made ahead where a GPU works meanwhile; a CPU has no time to spare, and two threads of torch's slow each other down.
    """

    def make(group: Group) -> tuple[list[Share], tuple[int, int]]:
        numbers, epoch, after = group
        return share(run, learner, numbers, epoch), after

    return ahead(make, groups) if run.device.type == "cuda" else (make(group) for group in groups)


def _validate_if_due(
    run: Run, progress: Progress, journal: Journal | None, listener: Listener
) -> tuple[Progress, bool]:
    settings = run.config.training
    if run.validate is None or not _is_validation_due(run, progress.step):
        return progress, False
    with run.as_used():
        found = run.validate(run.model, progress.step)
    after = progress.validated(found.loss, found.score, by_score=settings.best_by != "loss")
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
    """While it is on, the first Ctrl-C or SIGTERM is only remembered; a second one acts at once."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> "_Interrupts":
        self._before = {number: signal.signal(number, self._remember) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        self.asked = True
        signal.signal(number, signal.default_int_handler)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def best_checkpoint(folder: Path, progress: Progress) -> tuple[Path, str | None]:
    """The checkpoint a run is to be known by: the best validated one, or the last where nothing was validated.

    If that is gone or damaged, the newest that is not, and a note that says so.
    """
    best = checkpoint_path(folder, progress.best_step if progress.best_step is not None else progress.step)
    try:
        verify(best)
    except FolderError as error:
        newest, _ = newest_checkpoint(folder)
        if newest is None:
            raise
        return newest, f"the best checkpoint cannot be used ({error}): the newest one, {newest.name}, takes its place"
    return best, None
