"""Watches the training loss of a run for signs of a wrong learning rate, and reports the first.

A loss that rises: the learning rate is probably too high. A loss that stands still: it is far too low, or too high.
"""

import math

from heed.config import TrainingConfig
from heed.training.step_log import Listener, StepReport

_HORIZON = 100  # steps: the loss is averaged over about as many
_RISE = 1.2  # the mean loss has risen if it is this many times its minimum …
_LEAST_RISE = 0.3  # … and this many nats above it
_STILL_STEPS = 1000  # after so many steps the mean loss should have fallen …
_STILL = 0.97  # … below this share of what it was after `_HORIZON` steps


class Diagnosis(Listener):
    """A listener that reports problems of a run to another listener's `warning`."""

    def __init__(self, config: TrainingConfig, listener: Listener) -> None:
        self._config, self._listener = config, listener
        self._steps, self._has_reported = 0, False
        self._mean = self._first = math.nan  # mean loss now, and after `_HORIZON` steps
        self._lowest, self._lowest_step = math.inf, 0

    def step(self, report: StepReport) -> None:
        """Update the mean loss, and judge it."""
        if not math.isfinite(report.loss):
            return
        self._steps += 1
        share = max(1 / self._steps, 1 / _HORIZON)
        self._mean = report.loss if self._steps == 1 else self._mean + share * (report.loss - self._mean)
        if self._steps == _HORIZON:
            self._first = self._mean
        if self._steps >= _HORIZON:
            if self._mean < self._lowest:
                self._lowest, self._lowest_step = self._mean, report.step
            self._judge(report.step)

    def _judge(self, step: int) -> None:
        if self._mean > _RISE * self._lowest and self._mean > self._lowest + _LEAST_RISE:
            change = f"from {self._lowest:.2f} at step {self._lowest_step:,} to {self._mean:.2f} at step {step:,}"
            self._report(f"the training loss rose {change}: the learning rate is probably too high")
        elif self._steps == _STILL_STEPS and self._mean > _STILL * self._first:
            change = f"from {self._first:.2f} to {self._mean:.2f} in {step:,} steps"
            self._report(
                f"the training loss hardly changes ({change}): the learning rate is probably far too low, or too high"
            )

    def _report(self, message: str) -> None:
        """Warn, once per run: later problems are consequences of the first."""
        if not self._has_reported:
            self._has_reported = True
            is_paper = self._config.schedule == "paper"
            name = "learning_rate_factor" if is_paper else "learning_rate"
            self._listener.warning(f"{message}; training.{name} is {getattr(self._config, name):.3g}")
