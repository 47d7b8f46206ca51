"""The progress bar of training."""

import math

import pytest

from heed.cli.train import TrainingProgress
from heed.training.step_log import StepReport


def _shown_losses(losses: list[float]) -> list[float]:
    """The loss in the bar after each step."""
    progress, mean_losses = TrainingProgress(silent=True), []
    for step, loss in enumerate(losses, 1):
        progress.step(StepReport(step, 1, loss, 1e-3, 100, 0.1))
        state = progress._progress.tasks[0].fields["state"]
        mean_losses.append(float(state.split()[2]))
        assert state.startswith("mean loss ")
    return mean_losses


def test_the_mean_loss_is_bias_corrected_from_the_first_step() -> None:
    assert _shown_losses([5.0] * 4) == [5.0] * 4
    noisy = _shown_losses([4.0, 6.0] * 100)
    assert noisy[0] == 4.0
    assert max(noisy[-20:]) - min(noisy[-20:]) < 0.1  # the losses of the batches differ by 2
    assert noisy[-1] == pytest.approx(5, abs=0.1)


def test_a_non_finite_loss_is_left_out_of_the_mean_loss() -> None:
    first, *rest = _shown_losses([math.nan, 3.0, math.inf, 3.0])
    assert math.isnan(first)
    assert rest == [3.0] * 3
