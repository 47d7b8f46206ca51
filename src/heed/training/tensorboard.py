"""Training as TensorBoard shows it, for those who have the package `tensorboard`.

Enters: what the trainer reports. Leaves: event files in `RUN/tensorboard`. The journal stays the record of a run; this
is a copy for watching, and nothing reads it back.
"""

import weakref
from importlib.util import find_spec
from pathlib import Path

from heed.training.run import Listener, StepReport
from heed.training.task import Validation

_SECONDS = 10  # between writes to disk: what a kill may lose of the copy


def tensorboard_listener(folder: Path, after_step: int) -> Listener | None:
    """A listener that writes to the run's `tensorboard` folder; None if TensorBoard is not installed."""
    return None if find_spec("tensorboard") is None else TensorBoard(folder / "tensorboard", after_step)


class TensorBoard:
    """Writes each report as TensorBoard's scalars and text. Continuing from a step hides what came after it."""

    def __init__(self, folder: Path, after_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - fails without the package

        self._writer = SummaryWriter(str(folder), purge_step=after_step + 1, flush_secs=_SECONDS)
        weakref.finalize(self, self._writer.close)  # at the latest when Python ends, so no caller has to remember it

    def step(self, report: StepReport) -> None:
        """A step was taken."""
        self._writer.add_scalar("loss/training", report.loss, report.step)
        self._writer.add_scalar("learning_rate", report.rate, report.step)
        self._writer.add_scalar("tokens_per_second", report.tokens / report.seconds, report.step)

    def validation(self, step: int, found: Validation, best: bool) -> None:  # noqa: ARG002 - the protocol's
        """The model was tried."""
        self._writer.add_scalar("loss/validation", found.loss, step)
        if found.score is not None:
            self._writer.add_scalar(found.metric, found.score, step)
        if found.sample is not None:
            named = zip(("source", "wanted", "got"), found.sample, strict=True)
            # TensorBoard reads Markdown: four spaces keep text of the user's as it is.
            self._writer.add_text("sample", "\n".join(f"    {name:<7}{text}" for name, text in named), step)
        self._writer.flush()

    def note(self, message: str) -> None:
        """Something else a person should know; the terminal says it."""
