"""`heed train`: parses the options, trains a model on raw text and shows progress on standard error."""

import math
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from heed.cli import options
from heed.cli.options import from_options, out_option
from heed.training.corpora import TextFiles
from heed.training.presets import setting_layers
from heed.training.step_log import METRICS, Listener, StepReport, Validation

InitFromOption = Annotated[
    Path | None, typer.Option(help="Model folder whose weights and vocabulary to start from (fine-tuning).")
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Continue the run in --out from its last checkpoint; without one, start it.")
]
_SECONDS_BETWEEN_LINES = 10.0  # where standard error is no terminal


class TrainingProgress(Listener):
    """Shows text preparation, then training, on standard error: a progress bar, or lines where it is no terminal."""

    def __init__(self, *, silent: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False, quiet=silent)
        self._live = self._console.is_terminal and not silent
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
        self._progress = Progress(*columns, TimeRemainingColumn(), console=self._console, disable=not self._live)
        self._bar = self._progress.add_task("", state="", total=None)
        self._activity = ""
        self._last_line = time.monotonic()
        self._tokens_per_second = 0.0
        self._loss_ema, self._losses = 0.0, 0  # the EMA, and how many losses are in it
        self._max_steps: int | None = None

    def __enter__(self) -> "TrainingProgress":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def work(self, doing: str, done: int, total: int | None) -> None:
        """Show the current work on text and how many pairs are done."""
        if not self._live:
            self._print_work(doing, done, total)
        self._activity = doing
        self._progress.update(self._bar, description=doing, completed=done, total=total, state=f"{done:,} pairs")

    def _print_work(self, doing: str, done: int, total: int | None) -> None:
        """Print a line when an activity begins, and every few seconds while it lasts."""
        now = time.monotonic()
        if doing != self._activity:
            self.note(f"{doing} …")
        elif now - self._last_line > _SECONDS_BETWEEN_LINES:
            self.note(f"{doing}: {done:,} pairs" if total is None else f"{doing}: {done:,} of {total:,} pairs")
        else:
            return
        self._last_line = now

    def step(self, report: StepReport) -> None:
        """Advance the bar, or print a line every few seconds."""
        if report.max_steps != self._max_steps:  # the first step
            self._max_steps = report.max_steps
            self._progress.update(self._bar, total=report.max_steps, completed=report.step - 1)
        speed = report.tokens / report.seconds
        self._tokens_per_second = 0.95 * (self._tokens_per_second or speed) + 0.05 * speed
        if math.isfinite(report.loss):  # a NaN would stay in the EMA for ever
            self._loss_ema, self._losses = 0.98 * self._loss_ema + 0.02 * report.loss, self._losses + 1
        loss = self._loss_ema / (1 - 0.98**self._losses) if self._losses else report.loss  # bias-corrected, as in Adam
        state = f"mean loss {loss:.3f}  rate {report.rate:.2g}  {self._tokens_per_second:,.0f} tokens/s"
        self._progress.update(
            self._bar, description=f"step {report.step:,}/{report.max_steps:,}", completed=report.step, state=state
        )
        if not self._live and time.monotonic() - self._last_line > _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            self.note(f"step {report.step:,}/{report.max_steps:,}  {state}")

    def validation(self, step: int, result: Validation, best: bool) -> None:
        """Print loss, score and a sample translation."""
        score = "" if result.score is None else f"  {METRICS[result.metric].format(result.score)}"
        if result.outputs:
            score += f"  exact match {result.exact / result.outputs:.1%}"
        self.note(f"step {step:,}  validation loss {result.loss:.4f}{score}{'  best so far' if best else ''}")
        if result.truncated:
            self.note(
                f"  {result.truncated:,} of {result.outputs:,} translations are truncated at the length limit: raise "
                "search.max_length, unless the model still repeats itself"
            )
        if result.repetitive:
            self.note(f"  {result.repetitive:,} of {result.outputs:,} translations repeat themselves")
        if result.sample is not None:
            source, reference, translation = result.sample
            for name, text in (("source", source), ("reference", reference), ("output", translation)):
                self.note(f"  {name:<10}{text}")

    def note(self, message: str) -> None:
        """Print a line; brackets in the user's text are no markup."""
        self._console.print(Text(message), soft_wrap=True)

    def warning(self, message: str) -> None:
        """Print a line that stands out from the notes."""
        self.note(f"warning: {message}")


def train(
    out: Annotated[Path, out_option("Folder to write the run to; created if it does not exist.")],
    source: options.SourceOption = [],
    target: options.TargetOption = [],
    pairs: options.PairsOption = [],
    text: options.TextOption = [],
    weight: options.WeightOption = [],
    valid_source: options.ValidSourceOption = [],
    valid_target: options.ValidTargetOption = [],
    valid_pairs: options.ValidPairsOption = [],
    valid_text: options.ValidTextOption = [],
    source_key: options.SourceKeyOption = "source",
    target_key: options.TargetKeyOption = "target",
    columns: options.ColumnsOption = None,
    pairs_format: options.PairsFormatOption = None,
    source_language: options.SourceLanguageOption = None,
    target_language: options.TargetLanguageOption = None,
    task: options.TaskOption = None,
    preset: options.PresetOption = None,
    config: options.ConfigOption = None,
    set_: options.SetOption = [],
    init_from: InitFromOption = None,
    resume: ResumeOption = False,
    cache: options.CacheOption = None,
) -> None:
    """Train a model on your own text; data-parallel when started with torchrun."""
    settings = from_options(set_)
    # Reports mistakes before torch is imported.
    setting_layers(config, settings, task, source_language, target_language, preset)
    from heed.training.train import train as train_model  # noqa: PLC0415 - torch takes seconds to import

    is_first = os.environ.get("RANK", "0") == "0"  # of torchrun's processes, only rank 0 reads stdin and reports
    files = TextFiles(source, target, pairs, text)
    with TrainingProgress(silent=not is_first) as progress:
        (files,) = options.spooled(out, files) if is_first else (files,)
        train_model(
            out=out,
            **vars(files),
            weight=weight,
            valid_source=valid_source,
            valid_target=valid_target,
            valid_pairs=valid_pairs,
            valid_text=valid_text,
            source_key=source_key,
            target_key=target_key,
            columns=columns,
            pairs_format=pairs_format,
            source_language=source_language,
            target_language=target_language,
            task=task,
            preset=preset,
            config=config,
            settings=settings,
            init_from=init_from,
            resume=resume,
            cache=cache,
            listener=progress,
        )
