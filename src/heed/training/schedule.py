"""How large a step to take, and when (paper, section 5.3). Knows nothing of models or torch."""


def noam_rate(step: int, d_model: int, warmup_steps: int, factor: float = 1.0) -> float:
    """factor · d_model^-0.5 · min(step^-0.5, step · warmup_steps^-1.5), for steps counted from 1.

    Grows in a straight line for `warmup_steps` steps, then falls with the square root of the step.
    """
    return float(factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5))
