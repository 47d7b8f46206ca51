"""Scores as a person reads them, as a program reads them, and as a model's card keeps them."""

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from heed.evaluation.metrics import Score


def score_table(*headings: str) -> Table:
    """A table whose first column is the metric."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("metric")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def metric(score: "Score") -> str:
    """Its name, and which way is better."""
    return f"{score.metric} {'↓' if score.lower_is_better else '↑'}"


def scored(scores: "Sequence[Score]", digits: int = 2) -> Table:
    """Values and intervals."""
    table = score_table("value", "95 % interval")
    for score in scores:
        between = f"{score.mean:.{digits}f} ± {score.half_width:.{digits}f}"
        table.add_row(metric(score), f"{score.value:.{digits}f}", between)
    return table


def signatures(scores: "Sequence[Score]") -> Table:
    """What makes each comparable with others."""
    found = Table.grid(padding=(0, 2))
    for score in scores:
        found.add_row(score.metric, Text(score.short_signature))
    return found


def as_numbers(scores: "Sequence[Score]") -> dict[str, Any]:
    """For a program."""
    shown = ("value", "mean", "half_width", "signature")
    return {
        score.metric.lower().replace(" ", "_").replace("-", "_"): {name: getattr(score, name) for name in shown}
        for score in scores
    }


def write_card(
    model: Path, test_set: str, texts: tuple[Sequence[str], Sequence[str]], scores: "list[Score]", search: str = ""
) -> None:
    """Put scores into a model's card; texts: the test set's two sides. A card that cannot be written is no mistake."""
    from heed.artifacts.card import CARD, Evaluation, digest_of, write_scores  # noqa: PLC0415 - imports torch

    evaluation = Evaluation(test_set, digest_of(*texts), search, date.today().isoformat())
    try:
        write_scores(model, evaluation, scores)
    except OSError as error:
        typer.echo(f"note: the scores are not in {model / CARD}: {error}", err=True)
    else:
        typer.echo(f"the scores are in {model / CARD}", err=True)
