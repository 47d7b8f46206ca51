"""What `heed evaluate` says of a decoder or an encoder alone: how likely texts are, how many labels are right."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from heed.cli.scores import as_numbers, scored, signatures, write_card
from heed.cli.tables import output_console
from heed.errors import DataError
from heed.text.corpus import Corpus, read_lines, read_pairs

if TYPE_CHECKING:
    from heed.evaluation.metrics import Score

_MOST_LABELS = 20  # whose confusion fits a screen


def evaluate_alone(
    model: Path | None,
    text: str | None,
    pairs: Corpus | None,
    others: Mapping[str, str | None],
    resamples: int,
    *,
    as_json: bool,
    card: bool,
) -> None:
    """Score a model on texts, or on texts with labels. others: options that this has no use for."""
    useless = [name for name, value in others.items() if value is not None]
    useless += ["--pairs"] if text is not None and pairs is not None else []
    if useless:
        raise DataError(f"{useless[0]} is of no use beside {'--text' if text is not None else '--pairs'}")
    if model is None:
        raise DataError("give a model folder to score")
    if text is not None:
        _evaluate_text(model, text, resamples, as_json=as_json, card=card)
    elif pairs is not None:
        _evaluate_labels(model, pairs, resamples, as_json=as_json, card=card)


def _evaluate_text(model: Path, path: str, resamples: int, *, as_json: bool, card: bool) -> None:
    from heed.evaluation.task_metrics import likelihood  # noqa: PLC0415
    from heed.inference.generator import Generator  # noqa: PLC0415 - torch takes seconds to import

    texts = [line for line in read_lines(path) if line]
    generator = Generator.open(model)
    found = generator.token_scores(texts)
    scores = likelihood([sum(one) for one in found], [len(one) for one in found], texts, resamples)
    _tell(model, path, len(texts), scores, {}, as_json=as_json, digits=4)
    if card:
        write_card(model, Path(path).name, (texts, []), scores)


def _evaluate_labels(model: Path, corpus: Corpus, resamples: int, *, as_json: bool, card: bool) -> None:
    from heed.evaluation.task_metrics import confusion, label_scores  # noqa: PLC0415
    from heed.inference.classifier import Classifier  # noqa: PLC0415 - torch takes seconds to import

    path, rows = str(corpus.pairs), list(read_pairs(corpus))
    read = [pair for pair in rows if pair.source and pair.target]
    if len(read) < len(rows):
        typer.echo(
            f"note: {len(rows) - len(read):,} of {len(rows):,} rows have no text or no label: not scored", err=True
        )
    texts, right = [pair.source for pair in read], [pair.target for pair in read]
    classifier = Classifier.open(model)
    given = [one.label for one in classifier.classify(texts)]
    scores = label_scores(given, right, classifier.labels, resamples)
    cells = confusion(given, right, classifier.labels).tolist()
    told = {"labels": list(classifier.labels), "confusion": cells}
    _tell(model, path, len(texts), scores, told, as_json=as_json, digits=2)
    if not as_json and len(classifier.labels) <= _MOST_LABELS:
        console = output_console()
        console.print("\nrows: what is right; columns: what was said", _confusion(classifier.labels, cells), sep="\n")
    if card:
        write_card(model, Path(path).name, (texts, right), scores)


def _tell(
    model: Path,
    path: str,
    texts: int,
    scores: "list[Score]",
    more: dict[str, object],
    *,
    as_json: bool,
    digits: int,
) -> None:
    if as_json:
        told = {"model": str(model), "test_set": path, "texts": texts, "scores": as_numbers(scores), **more}
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False))
        return
    console = output_console()
    console.print(Text(f"{model} on {path}, {texts:,} texts"), scored(scores, digits), signatures(scores), sep="\n")


def _confusion(labels: Sequence[str], cells: Sequence[Sequence[int]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    for label in labels:
        table.add_column(Text(label), justify="right")
    for label, row in zip(labels, cells, strict=True):
        table.add_row(Text(label), *(f"{count:,}" for count in row))
    return table
