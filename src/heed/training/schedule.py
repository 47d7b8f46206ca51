"""How large a step to take, and when (paper, section 5.3). Knows nothing of models or torch."""

import math

from heed.config import TrainingConfig


def noam_rate(step: int, d_model: int, warmup_steps: int, factor: float = 1.0) -> float:
    """factor · d_model^-0.5 · min(step^-0.5, step · warmup_steps^-1.5), for steps counted from 1.

    Grows in a straight line for `warmup_steps` steps, then falls with the square root of the step.
    """
    return float(factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5))


def cosine_rate(step: int, max_steps: int, warmup_steps: int, peak: float) -> float:
    """Grows in a straight line to `peak`, then falls along half a cosine to zero at `max_steps`.

    For a run whose length is known, it ends in smaller steps than the paper's schedule, and so more surely.
    """
    if step < warmup_steps:
        return peak * step / warmup_steps
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / max(1, max_steps - warmup_steps)))


def inverse_sqrt_rate(step: int, warmup_steps: int, peak: float) -> float:
    """Grows in a straight line to `peak`, then falls with the square root of the step."""
    return peak * min(step / warmup_steps, math.sqrt(warmup_steps / step))


def constant_rate(step: int, warmup_steps: int, peak: float) -> float:
    """Grows in a straight line to `peak` and stays there."""
    return peak * min(step / warmup_steps, 1.0)


def learning_rate(step: int, config: TrainingConfig, d_model: int) -> float:
    """The rate of a step, counted from 1, by the schedule that the settings name."""
    match config.schedule:
        case "paper":
            return noam_rate(step, d_model, config.warmup_steps, config.learning_rate_factor)
        case "inverse-sqrt":
            return inverse_sqrt_rate(step, config.warmup_steps, config.learning_rate)
        case "cosine":
            return cosine_rate(step, config.max_steps, config.warmup_steps, config.learning_rate)
        case "constant":
            return constant_rate(step, config.warmup_steps, config.learning_rate)
