"""`heed evaluate` of language models and classifiers: perplexity and bits per byte, accuracy and macro-F1."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from heed.cli.output import (
    interval_table,
    output_console,
    print_notes,
    scores_as_json,
    signature_table,
    write_card,
)
from heed.errors import DataError
from heed.text.corpus import Corpus, read_lines, read_pairs
from heed.training.corpora import PairFileOptions

if TYPE_CHECKING:
    from heed.evaluation.metrics import Score

_MAX_LABELS = 20  # of a confusion matrix that is printed


def evaluate_task(
    model: Path | None,
    text: str | None,
    pairs: str | None,
    reading: PairFileOptions,
    others: Mapping[str, str],
    resamples: int,
    *,
    as_json: bool,
    card: bool,
) -> None:
    """Score a language model on texts, or a classifier on labelled texts. others: files of translation options."""
    excess = [f"--{name}" for name in others] + (["--pairs"] if text is not None and pairs is not None else [])
    if excess:
        raise DataError(f"{excess[0]} cannot be combined with {'--text' if text is not None else '--pairs'}")
    if model is None:
        raise DataError("expected a model folder to evaluate")
    if pairs is not None:
        labelled = replace(reading.corpora([pairs])[0], labelled=True)
        _evaluate_classifier(model, labelled, resamples, as_json=as_json, card=card)
    elif text is not None:
        _evaluate_language_model(model, text, resamples, as_json=as_json, card=card)


def _evaluate_language_model(model: Path, path: str, resamples: int, *, as_json: bool, card: bool) -> None:
    from heed.evaluation.task_metrics import language_model_scores  # noqa: PLC0415
    from heed.inference.generator import Generator  # noqa: PLC0415 - torch takes seconds to import

    texts = [line for line in read_lines(path) if line]
    log_probs = Generator.open(model).token_scores(texts)
    totals, lengths = [sum(text) for text in log_probs], [len(text) for text in log_probs]
    scores = language_model_scores(totals, lengths, texts, resamples)
    _print_task(model, path, len(texts), scores, {}, as_json=as_json)
    if card:
        write_card(model, Path(path).name, (texts, []), scores)


def _evaluate_classifier(model: Path, corpus: Corpus, resamples: int, *, as_json: bool, card: bool) -> None:
    from heed.evaluation.task_metrics import classification_scores, confusion_matrix  # noqa: PLC0415
    from heed.inference.classifier import Classifier  # noqa: PLC0415 - torch takes seconds to import

    rows = list(read_pairs(corpus))
    labelled = [pair for pair in rows if pair.source and pair.target]
    if skipped := len(rows) - len(labelled):
        print_notes([f"{skipped:,} of {len(rows):,} rows have no text or no label and are not scored"])
    texts, labels = [pair.source for pair in labelled], [pair.target for pair in labelled]
    classifier = Classifier.open(model)
    predicted = [prediction.label for prediction in classifier.classify(texts)]
    scores = classification_scores(predicted, labels, classifier.labels, resamples)
    matrix = confusion_matrix(predicted, labels, classifier.labels).tolist()
    more = {"labels": list(classifier.labels), "confusion": matrix}
    _print_task(model, str(corpus.pairs), len(texts), scores, more, as_json=as_json)
    if not as_json and len(classifier.labels) <= _MAX_LABELS:
        table = _confusion_table(classifier.labels, matrix)
        output_console().print("\nconfusion matrix; rows: true label, columns: predicted label", table, sep="\n")
    if card:
        write_card(model, Path(str(corpus.pairs)).name, (texts, labels), scores)


def _print_task(
    model: Path, path: str, texts: int, scores: "list[Score]", more: dict[str, object], *, as_json: bool
) -> None:
    if as_json:
        document = {"model": str(model), "test_set": path, "texts": texts, "scores": scores_as_json(scores), **more}
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    table = interval_table(scores, digits=2 if more else 4)
    output_console().print(Text(f"{model} on {path}, {texts:,} texts"), table, signature_table(scores), sep="\n")


def _confusion_table(labels: Sequence[str], matrix: Sequence[Sequence[int]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    for label in labels:
        table.add_column(Text(label), justify="right")
    for label, row in zip(labels, matrix, strict=True):
        table.add_row(Text(label), *(f"{count:,}" for count in row))
    return table
