"""The loop that learns: batches in, a better model out, and everything on disk on the way.

Enters: a model, its batches and its settings. Leaves: checkpoints and a journal in the run's folder. Exactness rests on
one rule: what is random is a function of seed, step and batch, never a state carried along. So a run that is cut off
anywhere goes on from its last checkpoint as if nothing had happened. Knows nothing of text, files of text or terminals.
"""

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from heed.config import RunConfig
from heed.errors import TrainingError
from heed.model.transformer import Transformer
from heed.training.batches import Batches, Numbers
from heed.training.checkpoint import Progress, checkpoint_path, checkpoints, prune, write_checkpoint
from heed.training.journal import Journal
from heed.training.loss import smoothed_cross_entropy
from heed.training.schedule import learning_rate

_PATIENCE_WITH_NONSENSE = 5  # steps in a row whose loss is not finite


@dataclass(frozen=True)
class StepReport:
    """One step: its loss a target token, and what it took."""

    step: int
    epoch: int
    loss: float
    rate: float
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Validation:
    """How well a model does on text it does not learn from."""

    loss: float
    bleu: float | None = None
    sample: tuple[str, str, str] | None = None  # source, reference, translation


@runtime_checkable
class Listener(Protocol):
    """Whoever wants to watch."""

    def step(self, report: StepReport) -> None:
        """A step was taken."""

    def validation(self, step: int, found: Validation, best: bool) -> None:
        """The model was tried."""

    def note(self, message: str) -> None:
        """Something else a person should know."""


@dataclass(frozen=True)
class Run:
    """All that training needs."""

    folder: Path
    config: RunConfig
    model: Transformer
    optimizer: Optimizer
    batches: Batches
    files: Callable[[Progress], Mapping[str, bytes]]  # the model folder's files as they would be written now
    validate: Callable[[Transformer, int], Validation] | None
    device: torch.device

    def forward(self) -> Callable[..., Tensor]:
        """The model as training calls it: compiled if so set. Compiled once, whatever the lengths of the sentences."""
        if self.config.training.compile:
            return torch.compile(self.model, dynamic=True, fullgraph=True)
        return self.model

    def precision(self) -> torch.autocast:
        """In which the arithmetic is done."""
        wanted = self.config.training.precision
        half = wanted == "bfloat16" or (wanted == "auto" and self.device.type == "cuda")
        return torch.autocast(self.device.type, torch.bfloat16, enabled=half)


def make_optimizer(model: Transformer, config: RunConfig) -> Optimizer:
    """Adam with the paper's betas and epsilon."""
    settings = config.training
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), eps=1e-9, weight_decay=settings.weight_decay)
    return torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)


def train(run: Run, progress: Progress, listener: Listener) -> Progress:
    """Train from `progress` to `max_steps`, or until validation stops improving; returns how far it came.

    An interrupt (Ctrl-C or SIGTERM) ends the step, saves a checkpoint and is then raised as KeyboardInterrupt.
    """
    settings = run.config.training
    journal = Journal(run.folder / "journal.jsonl", after_step=progress.step)
    nonsense, forward = 0, run.forward()
    with _Interrupts() as interrupts:
        for group, epoch, position in _groups(run.batches, progress, settings.accumulate):
            if progress.step >= settings.max_steps or _has_stalled(run, progress):
                break
            started = time.monotonic()
            step = progress.step + 1
            loss, tokens, rate = _learn(run, forward, group, step)
            finite = math.isfinite(loss)
            nonsense = 0 if finite else nonsense + 1
            skipped = progress.skipped + (not finite)
            progress = replace(progress, step=step, epoch=epoch, position=position, skipped=skipped)
            report = StepReport(step, progress.epoch, loss, rate, tokens, time.monotonic() - started)
            journal.write({"step": step, "loss": loss, "rate": rate, "tokens": tokens, "seconds": report.seconds})
            listener.step(report)
            if nonsense:
                _complain(run, step, loss, nonsense, listener)
            progress, improved = _validate_if_due(run, progress, journal, listener)
            stopping = interrupts.asked or step == settings.max_steps or _has_stalled(run, progress)
            due = step % settings.checkpoint_every == 0 and not nonsense  # what led to nonsense is not worth keeping
            if improved or stopping or due:
                write_checkpoint(run.folder, run.files(progress), run.model, run.optimizer, progress)
                prune(run.folder, settings.keep_last, progress.best_step)
            if interrupts.asked:
                listener.note(f"interrupted after step {step}: saved, go on with --resume")
                raise KeyboardInterrupt
    return progress


def _groups(batches: Batches, progress: Progress, accumulate: int) -> Iterator[tuple[list[Numbers], int, int]]:
    """The batches of each step from here on, and the epoch and position after it; an epoch's last may be fewer."""
    epoch, position = progress.epoch, progress.position
    while True:
        order = batches.epoch(epoch)
        for start in range(position, len(order), accumulate):
            group = order[start : start + accumulate]
            done = start + len(group) == len(order)
            yield group, epoch + done, 0 if done else start + len(group)
        epoch, position = epoch + 1, 0


def _learn(run: Run, forward: Callable[..., Tensor], group: list[Numbers], step: int) -> tuple[float, int, float]:
    """One step: the gradients of all batches of the group, divided once by all their tokens."""
    settings = run.config.training
    rate = learning_rate(step, settings, run.config.model.d_model)
    batches = [run.batches.batch(numbers) for numbers in group]
    tokens = sum(batch.tokens for batch in batches)
    run.model.train()
    loss = 0.0
    for index, batch in enumerate(batch.to(run.device) for batch in batches):
        torch.manual_seed(_seed(settings.seed, step, index))
        with run.precision():
            logits = forward(batch.src, batch.tgt_in, batch.src_layout, batch.tgt_layout)
            total, _ = smoothed_cross_entropy(logits, batch.tgt_out, run.config.model.pad_id, settings.label_smoothing)
        (total / tokens).backward()
        loss += total.item() / tokens
    if math.isfinite(loss):
        if settings.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(run.model.parameters(), settings.clip_norm)
        for weights in run.optimizer.param_groups:
            weights["lr"] = rate
        run.optimizer.step()
    run.optimizer.zero_grad()
    return loss, tokens, rate


def _seed(*numbers: int) -> int:
    """One number that stands for several, to seed dropout with."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def _complain(run: Run, step: int, loss: float, in_a_row: int, listener: Listener) -> None:
    listener.note(f"step {step}: the loss is {loss}, so the step was skipped")
    if in_a_row >= _PATIENCE_WITH_NONSENSE:
        saved = checkpoints(run.folder)
        kept = f"the last good checkpoint is {saved[-1]}" if saved else "there is no checkpoint yet"
        raise TrainingError(
            f"the loss was not finite in {in_a_row} steps in a row, up to step {step}; {kept}. "
            "Lower training.learning_rate_factor, or set training.clip_norm"
        )


def _validate_if_due(run: Run, progress: Progress, journal: Journal, listener: Listener) -> tuple[Progress, bool]:
    settings = run.config.training
    due = progress.step % settings.validate_every == 0 or progress.step == settings.max_steps
    if run.validate is None or not due:
        return progress, False
    found = run.validate(run.model, progress.step)
    after = progress.validated(found.loss)
    improved = after.best_step == progress.step
    entry = {"step": progress.step, "validation_loss": found.loss, "bleu": found.bleu, "sample": found.sample}
    journal.write(entry)
    listener.validation(progress.step, found, improved)
    return after, improved


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


def best_checkpoint(folder: Path, progress: Progress) -> Path:
    """The checkpoint a run is to be known by: the best validated one, or the last where nothing was validated."""
    return checkpoint_path(folder, progress.best_step if progress.best_step is not None else progress.step)
