"""Learning-rate schedules (paper, section 5.3), the Adam optimiser, and the EMA of the weights."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Optimizer

from heed.config import RunConfig, TrainingConfig
from heed.model.transformer import Transformer


def noam_rate(step: int, d_model: int, warmup_steps: int, factor: float = 1.0) -> float:
    """The paper's schedule: factor · d_model^-0.5 · min(step^-0.5, step · warmup_steps^-1.5), steps counted from 1.

    Linear warm-up for `warmup_steps` steps, then inverse square root decay.
    """
    return float(factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5))


def cosine_rate(step: int, max_steps: int, warmup_steps: int, peak: float) -> float:
    """Linear warm-up to `peak`, then cosine decay to zero at `max_steps`."""
    if step < warmup_steps:
        return peak * step / warmup_steps
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / max(1, max_steps - warmup_steps)))


def inverse_sqrt_rate(step: int, warmup_steps: int, peak: float) -> float:
    """Linear warm-up to `peak`, then inverse square root decay."""
    return peak * min(step / warmup_steps, math.sqrt(warmup_steps / step))


def constant_rate(step: int, warmup_steps: int, peak: float) -> float:
    """Linear warm-up to `peak`, then constant."""
    return peak * min(step / warmup_steps, 1.0)


def learning_rate(step: int, config: TrainingConfig, d_model: int) -> float:
    """The learning rate of a step, counted from 1, under `training.schedule`."""
    match config.schedule:
        case "paper":
            return noam_rate(step, d_model, config.warmup_steps, config.learning_rate_factor)
        case "inverse-sqrt":
            return inverse_sqrt_rate(step, config.warmup_steps, config.learning_rate)
        case "cosine":
            return cosine_rate(step, config.max_steps, config.warmup_steps, config.learning_rate)
        case "constant":
            return constant_rate(step, config.warmup_steps, config.learning_rate)


def make_optimizer(model: Transformer, config: RunConfig) -> Optimizer:
    """Adam or AdamW with the paper's betas and epsilon; fused, except for weights sharded on CPUs."""
    settings, weights = config.training, list(model.parameters())
    device = weights[0].device.type
    fused = device == "cuda" or (device == "cpu" and not settings.shard)
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(weights, betas=(0.9, 0.98), eps=1e-9, weight_decay=settings.weight_decay, fused=fused)
    return torch.optim.Adam(weights, betas=(0.9, 0.98), eps=1e-9, fused=fused)


class EMA:
    """The exponential moving average of a model's weights.

    Each step moves the average towards the weights by 1 - decay; in the first steps by more, so that it forgets the
    random initialisation.
    """

    def __init__(self, model: Transformer, decay: float) -> None:
        self._decay = decay
        self._weights = dict(model.named_parameters())
        self._average = {name: weight.detach().clone() for name, weight in self._weights.items()}

    @torch.no_grad()
    def update(self, step: int, skip: Float[Tensor, ""] | None = None) -> None:
        """Move the average towards a step's new weights. skip: a device scalar, 1 where the step was skipped."""
        decay = min(self._decay, (1 + step) / (10 + step))
        average: list[Tensor] = list(self._average.values())
        weights: list[Tensor] = list(self._weights.values())
        if skip is None:
            torch._foreach_lerp_(average, weights, 1 - decay)  # a few kernels for all weights
            return
        change = torch._foreach_sub(weights, average)
        torch._foreach_mul_(change, (1 - decay) * (1 - skip))
        torch._foreach_add_(average, change)

    @contextmanager
    def swapped_in(self) -> Iterator[Mapping[str, Tensor]]:
        """The model has the averaged weights in this context, which yields the raw weights."""
        raw = {name: weight.detach().clone() for name, weight in self._weights.items()}
        self._copy_to_model(self._average)
        try:
            yield raw
        finally:
            self._copy_to_model(raw)

    @torch.no_grad()
    def resume(self, raw_weights: Mapping[str, Tensor]) -> None:
        """Restore a checkpoint: the model holds the saved average; take it over, and load the model's raw weights."""
        for name, weight in self._weights.items():
            self._average[name].copy_(weight)
        self._copy_to_model(raw_weights)

    @torch.no_grad()
    def _copy_to_model(self, weights: Mapping[str, Tensor]) -> None:
        for name, weight in self._weights.items():
            weight.copy_(weights[name])
