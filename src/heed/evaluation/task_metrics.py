"""Scores of models that do not translate, each with its signature and bootstrap interval.

Enters: log-probabilities of texts, or predicted and true labels. Leaves: perplexity, bits per byte and nats per text of
a language model; accuracy, macro-F1 and the confusion matrix of a classifier. Knows nothing of models or files.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int

from heed.errors import DataError
from heed.evaluation.metrics import RESAMPLES, SEED, Score, bootstrap_interval
from heed.version import __version__


def language_model_scores(
    log_probs: Sequence[float], tokens: Sequence[int], texts: Sequence[str], resamples: int = RESAMPLES
) -> list[Score]:
    """The scores of texts whose probabilities, ends included, are given; tokens count the ends too."""
    if not texts:
        raise DataError("there is nothing to score: no text")
    nats, counts = -np.array(log_probs), np.array(tokens)
    sizes = np.array([len(text.encode()) + 1 for text in texts])
    measures: dict[str, Callable[[Int[np.ndarray, texts]], float]] = {
        "perplexity": lambda some: math.exp(min(nats[some].sum() / counts[some].sum(), 700.0)),
        "bits per byte": lambda some: float(nats[some].sum() / sizes[some].sum() / math.log(2)),
        "nats per text": lambda some: float(nats[some].mean()),
    }
    everything = np.arange(len(texts))
    long = f"texts:{len(texts)}|end:1 token, 1 byte|bs:{resamples}|seed:{SEED}|version:heed-{__version__}"
    short = f"#:{len(texts)}|end:1|bs:{resamples}|rs:{SEED}|v:heed-{__version__}"
    return [
        Score(name, measure(everything), *bootstrap_interval(len(texts), measure, resamples), long, short)
        for name, measure in measures.items()
    ]


def confusion_matrix(
    given: Sequence[str], right: Sequence[str], labels: Sequence[str]
) -> Int[np.ndarray, "labels labels"]:
    """How often a text of a row's label was given a column's."""
    numbers = {label: number for number, label in enumerate(labels)}
    cells = [numbers[label] * len(labels) + numbers[predicted] for label, predicted in zip(right, given, strict=True)]
    return np.bincount(cells, minlength=len(labels) ** 2).reshape(len(labels), len(labels))


def classification_scores(
    given: Sequence[str], right: Sequence[str], labels: Sequence[str], resamples: int = RESAMPLES
) -> list[Score]:
    """Accuracy and macro-F1 of predicted labels, with intervals by resampling texts."""
    if not right:
        raise DataError("there is nothing to score: no text with a label")
    for label in right:
        if label not in labels:
            raise DataError(f"the label {label!r} is not one of the model's labels: {', '.join(labels)}")
    numbers = {label: number for number, label in enumerate(labels)}
    wanted, found = (np.array([numbers[label] for label in some]) for some in (right, given))

    def accuracy(some: Int[np.ndarray, "texts"]) -> float:
        return 100 * float((wanted[some] == found[some]).mean())

    def macro_f1(some: Int[np.ndarray, "texts"]) -> float:
        hits = np.bincount(wanted[some][wanted[some] == found[some]], minlength=len(labels))
        both = np.bincount(wanted[some], minlength=len(labels)) + np.bincount(found[some], minlength=len(labels))
        there = both > 0  # a label that nobody has and nobody was given says nothing
        return 100 * float((2 * hits[there] / both[there]).mean())

    everything = np.arange(len(right))
    long = f"texts:{len(right)}|labels:{len(labels)}|bs:{resamples}|seed:{SEED}|version:heed-{__version__}"
    short = f"#:{len(right)}|l:{len(labels)}|bs:{resamples}|rs:{SEED}|v:heed-{__version__}"
    return [
        Score(name, measure(everything), *bootstrap_interval(len(right), measure, resamples), long, short)
        for name, measure in (("accuracy", accuracy), ("macro-F1", macro_f1))
    ]
