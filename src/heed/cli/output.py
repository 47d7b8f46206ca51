"""What several verbs print: tables, scores, notes, and a bar while a long translation runs.

Enters: scores and translations. Leaves: text on standard output for the result, on standard error for the rest, and
scores in a model's card. Imports no torch before a card is written.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from heed.config import SearchConfig

if TYPE_CHECKING:
    from heed.evaluation.metrics import Score
    from heed.inference.translation import Translation

_UNLIMITED = 100_000


def output_console() -> Console:
    """A console on standard output; in a pipe it has no width, so that nothing is truncated or wrapped."""
    unlimited = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=_UNLIMITED if unlimited else None)


def counted(count: int, unit: str) -> str:
    """A number with its unit: `1 pair`, `1,200 pairs`."""
    return f"{count:,} {unit}{'' if count == 1 else 's'}"


@dataclass
class Translated:
    """Counts of translated texts, for the notes after a long translation."""

    texts: int = 0
    split: int = 0  # texts that were translated in parts
    parts: int = 0  # of those
    truncated: int = 0  # texts that the length limit cut off

    def add(self, found: "Sequence[Translation]") -> None:
        """Count some more translations."""
        for one in found:
            self.texts += 1
            self.truncated += one.truncated or any(other.truncated for other in one.alternatives)
            if len(one.segments) > 1:
                self.split += 1
                self.parts += len(one.segments)

    def notes(self, search: SearchConfig, *, by_default: bool) -> list[str]:
        """The notes to print. by_default: texts were split without --split."""
        notes = []
        if self.split and by_default:
            notes.append(
                f"{self.split:,} of {self.texts:,} texts hold more than the model was trained on at once and were "
                f"translated in {self.parts:,} parts; --split line translates each line at once"
            )
        if self.truncated:
            limit = "the source's tokens and 50 more" if search.max_length is None else f"{search.max_length} tokens"
            notes.append(
                f"{self.truncated:,} of {self.texts:,} translations reached the length limit ({limit}) and are cut "
                "off; raise it with --set search.max_length=…"
            )
        return notes


def say(notes: "Iterable[str]") -> None:
    """Print notes to standard error."""
    for note in notes:
        typer.echo(f"note: {note}", err=True)


class TranslationProgress:
    """A bar of translated lines; nothing at all where standard error is no terminal, or where lines are seen anyway.

    total: lines in all, if known.
    """

    def __init__(self, total: int | None = None, *, output_seen: bool = False) -> None:
        console = Console(stderr=True)
        self._done = 0.0
        self._bar = Progress(
            TextColumn("translating"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("lines"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal or output_seen,
        )
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> "TranslationProgress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def within(self, lines: int, done: int, pieces: int) -> None:
        """Show progress within the next `lines` lines: `done` of their `pieces` pieces are translated."""
        self._bar.update(self._task, completed=int(self._done + lines * done / pieces))

    def add(self, lines: int) -> None:
        """Count lines whose translation is finished."""
        self._done += lines
        self._bar.update(self._task, completed=int(self._done))


def output_is_seen() -> bool:
    """Whether a person watches standard output: then the lines themselves show how far the work has come."""
    return sys.stdout.isatty()


def score_table(*headings: str) -> Table:
    """A table whose first column is the metric."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("metric")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def metric(score: "Score") -> str:
    """The metric's name with an arrow that says which way is better."""
    return f"{score.metric} {'↓' if score.lower_is_better else '↑'}"


def scored(scores: "Sequence[Score]", digits: int = 2) -> Table:
    """A table of scores with their values and 95 % intervals."""
    table = score_table("value", "95 % interval")
    for score in scores:
        between = f"{score.mean:.{digits}f} ± {score.half_width:.{digits}f}"
        table.add_row(metric(score), f"{score.value:.{digits}f}", between)
    return table


def signatures(scores: "Sequence[Score]") -> Table:
    """A grid of each score's short signature, which makes it comparable with published ones."""
    found = Table.grid(padding=(0, 2))
    for score in scores:
        found.add_row(score.metric, Text(score.short_signature))
    return found


def as_numbers(scores: "Sequence[Score]") -> dict[str, Any]:
    """Scores as JSON values, by the metric's name in lower case."""
    shown = ("value", "mean", "half_width", "signature")
    return {
        score.metric.lower().replace(" ", "_").replace("-", "_"): {name: getattr(score, name) for name in shown}
        for score in scores
    }


def write_card(
    model: Path, test_set: str, texts: tuple[Sequence[str], Sequence[str]], scores: "list[Score]", search: str = ""
) -> None:
    """Put scores into a model's card; texts: the test set's two sides. A card that cannot be written is no mistake."""
    from heed.artifacts.card import CARD, Evaluation, corpus_digest, write_scores  # noqa: PLC0415 - imports torch

    evaluation = Evaluation(test_set, corpus_digest(*texts), search, date.today().isoformat())
    try:
        write_scores(model, evaluation, scores)
    except OSError as error:
        typer.echo(f"note: the scores are not in {model / CARD}: {error}", err=True)
    else:
        typer.echo(f"the scores are in {model / CARD}", err=True)
