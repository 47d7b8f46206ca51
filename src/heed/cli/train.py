"""`heed train`: from raw text to a model folder, with progress to watch, and safe to cut off at any moment."""

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

_SECONDS = 10.0  # between plain lines


class Watch(Listener):
    """Shows the work on text, then the training. Everything goes to standard error."""

    def __init__(self, *, silent: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False, quiet=silent)
        self._live = self._console.is_terminal and not silent
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
        self._progress = Progress(*columns, TimeRemainingColumn(), console=self._console, disable=not self._live)
        self._bar = self._progress.add_task("", state="", total=None)
        self._doing = ""
        self._printed = time.monotonic()
        self._speed = 0.0
        self._loss, self._losses = 0.0, 0  # an exponential mean, and of how many
        self._max_steps: int | None = None

    def __enter__(self) -> "Watch":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def work(self, doing: str, done: int, total: int | None) -> None:
        """Show what is being done, and how many pairs are done."""
        if doing != self._doing and not self._live:
            self.note(f"{doing} …")
        self._doing = doing
        self._progress.update(self._bar, description=doing, completed=done, total=total, state=f"{done:,} pairs")

    def step(self, report: StepReport) -> None:
        """Move the bar; where there is none, print a line every few seconds."""
        if report.max_steps != self._max_steps:  # the first step
            self._max_steps = report.max_steps
            self._progress.update(self._bar, total=report.max_steps, completed=report.step - 1)
        speed = report.tokens / report.seconds
        self._speed = speed if not self._speed else 0.95 * self._speed + 0.05 * speed
        if math.isfinite(report.loss):  # one that is not would stay in the mean for ever
            self._loss, self._losses = 0.98 * self._loss + 0.02 * report.loss, self._losses + 1
        loss = self._loss / (1 - 0.98**self._losses) if self._losses else report.loss  # else it would begin at 0
        state = f"mean loss {loss:.3f}  rate {report.rate:.2g}  {self._speed:,.0f} tokens/s"
        self._progress.update(
            self._bar, description=f"step {report.step:,}/{report.max_steps:,}", completed=report.step, state=state
        )
        if not self._live and time.monotonic() - self._printed > _SECONDS:
            self._printed = time.monotonic()
            self.note(f"step {report.step:,}/{report.max_steps:,}  {state}")

    def validation(self, step: int, found: Validation, best: bool) -> None:
        """Loss, score and a sample."""
        score = "" if found.score is None else f"  {METRICS[found.metric].format(found.score)}"
        self.note(f"step {step:,}  validation loss {found.loss:.4f}{score}{'  best so far' if best else ''}")
        if found.truncated:
            self.note(
                f"  {found.truncated:,} of {found.outputs:,} translations are cut off at the length limit: raise "
                "search.max_length, unless the model still repeats itself"
            )
        if found.sample is not None:
            source, reference, translation = found.sample
            for name, text in (("source", source), ("wanted", reference), ("got", translation)):
                self.note(f"  {name:<7}{text}")

    def note(self, message: str) -> None:
        """Print a line; the user's text is shown as it is, never as markup."""
        self._console.print(Text(message), soft_wrap=True)


Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with the run in --out, which says all the rest; or start it.")
]


def train(
    out: Annotated[Path, out_option("The run's folder, made if it is not there.")],
    source: options.Source = [],
    target: options.Target = [],
    pairs: options.Pairs = [],
    text: options.Text = [],
    weight: options.Weights = [],
    valid_source: options.ValidSource = [],
    valid_target: options.ValidTarget = [],
    valid_pairs: options.ValidPairs = [],
    valid_text: options.ValidText = [],
    source_key: options.SourceKey = "source",
    target_key: options.TargetKey = "target",
    columns: options.Columns = None,
    pairs_format: options.PairsFormat = None,
    source_language: options.SourceLanguage = None,
    target_language: options.TargetLanguage = None,
    task: options.Task = None,
    preset: options.Preset = None,
    config: options.Config = None,
    set_: options.Set = [],
    init_from: Annotated[Path | None, typer.Option(help="A model folder whose weights to begin with.")] = None,
    resume: Resume = False,
    cache: options.Cache = None,
) -> None:
    """Train a model on your own text. Under torchrun, several processes train it together."""
    settings = from_options(set_)
    setting_layers(config, settings, task, source_language, target_language, preset)  # mistakes are found at once
    from heed.cli.train import Watch  # noqa: PLC0415
    from heed.training.train import train as train_model  # noqa: PLC0415 - torch takes seconds to import

    is_first = os.environ.get("RANK", "0") == "0"  # of torchrun's processes, one reads and reports
    files = TextFiles(source, target, pairs, text)
    with Watch(silent=not is_first) as watch:
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
            listener=watch,
        )
