"""Output shared by several verbs: score tables, notes, a translation progress bar, scores in a model card.

Results go to standard output, notes and progress to standard error. Imports no torch, and rich only where something is
drawn with it.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import typer

from heed.search_config import SearchConfig
from heed.text.length_bound import LengthBound

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from heed.evaluation.metrics import Score
    from heed.inference.translation import Translation
    from heed.text.spelling import Correction

_UNLIMITED_WIDTH = 100_000
_EXAMPLES = 5  # of corrected words in a note


def output_console() -> "Console":
    """A console on standard output; in a pipe its width is unlimited, so that nothing is truncated or wrapped."""
    from rich.console import Console  # noqa: PLC0415

    unlimited = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=_UNLIMITED_WIDTH if unlimited else None)


def counted(count: int, unit: str) -> str:
    """A number with its unit: `1 pair`, `1,200 pairs`."""
    return f"{count:,} {unit}{'' if count == 1 else 's'}"


@dataclass
class TranslationCounts:
    """Counts of translated texts, for the notes after a long translation."""

    texts: int = 0
    split: int = 0  # texts translated in segments
    segments: int = 0  # of the split texts
    truncated: int = 0  # texts truncated at the length limit
    normalized: int = 0  # texts whose case, spaces or final stop were changed before translation
    corrected: int = 0  # texts with corrected words
    corrections: "Counter[Correction]" = field(default_factory=Counter)

    def add(self, translations: "Sequence[Translation]") -> None:
        for best in translations:
            self.texts += 1
            self.truncated += best.truncated or any(other.truncated for other in best.alternatives)
            self.normalized += best.normalized
            self.corrected += bool(best.corrections)
            self.corrections.update(best.corrections)
            if len(best.segments) > 1:
                self.split += 1
                self.segments += len(best.segments)

    def notes(self, search: SearchConfig, *, by_default: bool) -> list[str]:
        """The notes to print. by_default: texts were split without --split."""
        notes = []
        if self.split and by_default:
            notes.append(
                f"{self.split:,} of {self.texts:,} texts are longer than the training lines and were translated in "
                f"{self.segments:,} segments; --split line translates each line at once"
            )
        if self.normalized:
            notes.append(
                f"{self.normalized:,} of {self.texts:,} texts are in capitals or title case, have runs of spaces or no "
                "final stop, unlike the training text, and were translated in its style (translate.normalize)"
            )
        if self.corrected:
            examples = ", ".join(str(correction) for correction, _ in self.corrections.most_common(_EXAMPLES))
            notes.append(
                f"{counted(self.corrections.total(), 'word')} in {self.corrected:,} of {self.texts:,} texts corrected "
                f"as misspelt, being rare or absent in the training text: {examples}"
                f"{', …' if len(self.corrections) > _EXAMPLES else ''}; --set translate.correct_spelling=false "
                "translates them as they are"
            )
        if self.truncated:
            bound = LengthBound(search.max_length_ratio, search.max_length_extra)
            limit = bound if search.max_length is None else f"{search.max_length} tokens"
            notes.append(
                f"{self.truncated:,} of {self.texts:,} translations reached the length limit ({limit}) and are "
                "truncated; raise it with --set search.max_length=…"
            )
        return notes


def print_notes(notes: "Iterable[str]") -> None:
    for note in notes:
        typer.echo(f"note: {note}", err=True)


class TranslationProgress:
    """A progress bar of translated lines; shown only where standard error is a terminal and `hidden` is false.

    total: the number of lines, if known.
    """

    def __init__(self, total: int | None, *, hidden: bool = False) -> None:
        self._done = 0.0
        self._bar = None if hidden or not sys.stderr.isatty() else _progress_bar()
        if self._bar is not None:
            self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> "TranslationProgress":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update_batch(self, lines: int, done: int, segments: int) -> None:
        """Show progress within a batch of `lines` lines, of whose `segments` segments `done` are translated."""
        self._show(self._done + lines * done / segments)

    def finish_batch(self, lines: int) -> None:
        self._done += lines
        self._show(self._done)

    def _show(self, done: float) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=int(done))


def _progress_bar() -> "Progress":
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = [TextColumn("translating"), BarColumn(), MofNCompleteColumn(), TextColumn("lines")]
    console = Console(stderr=True)
    return Progress(
        *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True,
        disable=not console.is_terminal,
    )  # fmt: skip


def score_table(*headings: str) -> "Table":
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("metric")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def metric_label(score: "Score") -> str:
    """The metric's name with an arrow: ↑ higher is better, ↓ lower is better."""
    return f"{score.metric} {'↓' if score.lower_is_better else '↑'}"


def interval_table(scores: "Sequence[Score]", digits: int = 2) -> "Table":
    """A table of scores with their 95 % confidence intervals."""
    table = score_table("value", "95 % interval")
    for score in scores:
        interval = f"{score.mean:.{digits}f} ± {score.half_width:.{digits}f}"
        table.add_row(metric_label(score), f"{score.value:.{digits}f}", interval)
    return table


def signature_table(scores: "Sequence[Score]") -> "Table":
    """The short signature of each score, which makes it comparable with published scores."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table.grid(padding=(0, 2))
    for score in scores:
        table.add_row(score.metric, Text(score.short_signature))
    return table


def scores_as_json(scores: "Sequence[Score]") -> dict[str, Any]:
    """Scores by the metric's name in snake case."""
    fields = ("value", "mean", "half_width", "signature")
    return {
        score.metric.lower().replace(" ", "_").replace("-", "_"): {name: getattr(score, name) for name in fields}
        for score in scores
    }


def write_card(
    model: Path, test_set: str, texts: tuple[Sequence[str], Sequence[str]], scores: "list[Score]", search: str = ""
) -> None:
    """Write scores into a model's card; a card that cannot be written is only a note.

    texts: source and target side of the test set.
    """
    from heed.artifacts.card import CARD, Evaluation, corpus_digest, write_scores  # noqa: PLC0415 - slow to import

    evaluation = Evaluation(test_set, corpus_digest(*texts), search, date.today().isoformat())
    try:
        write_scores(model, evaluation, scores)
    except OSError as error:
        typer.echo(f"note: the scores could not be written to {model / CARD}: {error}", err=True)
    else:
        typer.echo(f"scores written to {model / CARD}", err=True)
