"""One training run as the loop sees it: a model, its batches, its settings and its place on the disk."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.optim import Optimizer

from heed.config import RunConfig
from heed.model.transformer import Transformer
from heed.training.batches import Batches
from heed.training.bucketing import Shape
from heed.training.checkpoint import Progress, refuse_nonsense, training_state, write_checkpoint
from heed.training.distributed import Team, whole
from heed.training.ema import RunningMean
from heed.training.learner import Learner, can_capture, make_learner
from heed.training.task import Validate, Validation

_EXAMPLES = 16  # batches that say how large batches are


@dataclass(frozen=True)
class StepReport:
    """One step: its loss a target token, and what it took."""

    step: int
    epoch: int
    loss: float
    rate: float
    tokens: int
    seconds: float


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
    files: Callable[[Progress, Mapping[str, Tensor]], Mapping[str, bytes]]  # a model folder's, of these weights
    validate: Validate | None
    device: torch.device
    team: Team = field(default_factory=Team)
    mean: RunningMean | None = None
    compiled: bool | None = None  # whether layers are; none: as the settings say

    @property
    def is_ahead(self) -> bool:
        """Whether a step is asked for before the loss of the last is known: a GPU that works alone need never wait."""
        return self.device.type == "cuda" and self.team.size == 1

    def learner(self) -> Learner:
        """What finds gradients on this device."""
        shape, config = None, self.config
        if self.compiled is not None:
            training = config.training.model_copy(update={"compile": self.compiled})
            config = config.model_copy(update={"training": training})
        if can_capture(self.config, self.device):
            examples = [self.batches.batch(numbers, 0) for numbers in self.batches.epoch(0)[:_EXAMPLES]]
            shape = Shape.for_batches_like(examples, self.config.data.max_tokens + 1)
        return make_learner(self.model, config, self.device, shape)

    @contextmanager
    def as_used(self) -> Iterator[Mapping[str, Tensor] | None]:
        """While this is on, the model has the weights it will be used with; gives its own, if they are others."""
        if self.mean is None:
            yield None
        else:
            with self.mean.in_place() as own:
                yield own

    def save(self, progress: Progress) -> None:
        """Write a checkpoint, unless there is nonsense in it. In a team all gather what is shared out; one writes."""
        with self.as_used() as own:
            weights = {name: whole(weight) for name, weight in self.model.state_dict().items()}
            state = training_state(self.model, self.optimizer, own)
            refuse_nonsense(self.folder, progress.step, {**weights, **state})
            if self.team.is_first:
                write_checkpoint(self.folder, self.files(progress, weights), state, progress)


def make_optimizer(model: Transformer, config: RunConfig) -> Optimizer:
    """Adam with the paper's betas and epsilon; each weight in one pass, where a process holds all of it."""
    settings, weights = config.training, list(model.parameters())
    device = weights[0].device.type
    fused = device == "cuda" or (device == "cpu" and not settings.shard)
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(weights, betas=(0.9, 0.98), eps=1e-9, weight_decay=settings.weight_decay, fused=fused)
    return torch.optim.Adam(weights, betas=(0.9, 0.98), eps=1e-9, fused=fused)
