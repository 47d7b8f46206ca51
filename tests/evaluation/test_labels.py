import numpy as np
import pytest

from heed.errors import DataError
from heed.evaluation.task_metrics import classification_scores, confusion_matrix

LABELS = ("a", "b", "c")


def f1_by_hand(predictions: list[str], true_labels: list[str]) -> float:
    """Macro F1 by its definition, label by label."""
    f1_scores = []
    for label in set(predictions) | set(true_labels):
        true_positives = sum(
            predicted == true_label == label for predicted, true_label in zip(predictions, true_labels, strict=True)
        )
        precision = true_positives / predictions.count(label) if label in predictions else 0.0
        recall = true_positives / true_labels.count(label) if label in true_labels else 0.0
        f1_scores.append(2 * precision * recall / (precision + recall) if precision + recall else 0.0)
    return 100 * sum(f1_scores) / len(f1_scores)


@pytest.mark.parametrize("seed", range(5))
def test_accuracy_and_macro_f1_equal_their_definitions(seed: int) -> None:
    draw = np.random.default_rng(seed)
    true_labels = draw.choice(["a", "b"] if seed == 0 else LABELS, 60).tolist()
    predictions = [label if draw.random() < 0.7 else str(draw.choice(LABELS)) for label in true_labels]
    accuracy, f1 = classification_scores(predictions, true_labels, LABELS, resamples=200)
    assert accuracy.value == pytest.approx(100 * np.mean(np.array(predictions) == np.array(true_labels)))
    assert f1.value == pytest.approx(f1_by_hand(predictions, true_labels))
    # The interval of a mean over n texts is 1.96 standard errors.
    share = accuracy.value / 100
    assert accuracy.half_width == pytest.approx(196 * np.sqrt(share * (1 - share) / 60), rel=0.25)


def test_the_confusion_matrix_counts_predictions_per_true_label() -> None:
    matrix = confusion_matrix(["a", "b", "b", "c"], ["a", "a", "b", "b"], LABELS)
    assert matrix.tolist() == [[1, 1, 0], [0, 1, 1], [0, 0, 0]]


def test_no_texts_and_unknown_labels_are_refused() -> None:
    with pytest.raises(DataError, match="no labelled text"):
        classification_scores([], [], LABELS)
    with pytest.raises(DataError, match="the label 'd' is not one of the model's labels: a, b, c"):
        classification_scores(["a"], ["d"], LABELS)
