"""Metrics of language models and classifiers, each with its signature and bootstrap interval.

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
    """Scores from the log-probability and token count of each text, both including the end token."""
    if not texts:
        raise DataError("nothing to score: no text")
    nats, counts = -np.array(log_probs), np.array(tokens)
    sizes = np.array([len(text.encode()) + 1 for text in texts])
    measures: dict[str, Callable[[Int[np.ndarray, texts]], float]] = {
        "perplexity": lambda sample: math.exp(min(nats[sample].sum() / counts[sample].sum(), 700.0)),
        "bits per byte": lambda sample: float(nats[sample].sum() / sizes[sample].sum() / math.log(2)),
        "nats per text": lambda sample: float(nats[sample].mean()),
    }
    all_texts = np.arange(len(texts))
    long = f"texts:{len(texts)}|end:1 token, 1 byte|bs:{resamples}|seed:{SEED}|version:heed-{__version__}"
    short = f"#:{len(texts)}|end:1|bs:{resamples}|rs:{SEED}|v:heed-{__version__}"
    return [
        Score(name, measure(all_texts), *bootstrap_interval(len(texts), measure, resamples), long, short)
        for name, measure in measures.items()
    ]


def confusion_matrix(
    predicted_labels: Sequence[str], true_labels: Sequence[str], labels: Sequence[str]
) -> Int[np.ndarray, "labels labels"]:
    """The number of texts for each true label (row) and predicted label (column)."""
    label_ids = {label: index for index, label in enumerate(labels)}
    cells = [
        label_ids[label] * len(labels) + label_ids[predicted]
        for label, predicted in zip(true_labels, predicted_labels, strict=True)
    ]
    return np.bincount(cells, minlength=len(labels) ** 2).reshape(len(labels), len(labels))


def classification_scores(
    predicted_labels: Sequence[str], true_labels: Sequence[str], labels: Sequence[str], resamples: int = RESAMPLES
) -> list[Score]:
    """Accuracy and macro-F1 of predicted labels, with bootstrap intervals over texts."""
    if not true_labels:
        raise DataError("nothing to score: no labelled text")
    for label in true_labels:
        if label not in labels:
            raise DataError(f"the label {label!r} is not one of the model's labels: {', '.join(labels)}")
    label_ids = {label: index for index, label in enumerate(labels)}
    true, predicted = (np.array([label_ids[label] for label in sample]) for sample in (true_labels, predicted_labels))

    def accuracy(sample: Int[np.ndarray, "texts"]) -> float:
        return 100 * float((true[sample] == predicted[sample]).mean())

    def macro_f1(sample: Int[np.ndarray, "texts"]) -> float:
        hits = np.bincount(true[sample][true[sample] == predicted[sample]], minlength=len(labels))
        counts = np.bincount(np.concatenate((true[sample], predicted[sample])), minlength=len(labels))
        present = counts > 0  # labels that are neither true nor predicted are left out of the mean
        return 100 * float((2 * hits[present] / counts[present]).mean())

    all_texts = np.arange(len(true_labels))
    long = f"texts:{len(true_labels)}|labels:{len(labels)}|bs:{resamples}|seed:{SEED}|version:heed-{__version__}"
    short = f"#:{len(true_labels)}|l:{len(labels)}|bs:{resamples}|rs:{SEED}|v:heed-{__version__}"
    return [
        Score(name, measure(all_texts), *bootstrap_interval(len(true_labels), measure, resamples), long, short)
        for name, measure in (("accuracy", accuracy), ("macro-F1", macro_f1))
    ]
