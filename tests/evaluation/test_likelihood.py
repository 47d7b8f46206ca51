import math

import numpy as np
import pytest

from heed.errors import DataError
from heed.evaluation.task_metrics import language_model_scores


def test_uniform_predictions_over_256_tokens_have_perplexity_256_and_8_bits_per_byte() -> None:
    texts = ["abc", "é", ""]
    tokens = [len(text.encode()) + 1 for text in texts]  # each byte and EOS is a token; each has probability 1/256
    scores = {
        score.metric: score
        for score in language_model_scores([-count * math.log(256) for count in tokens], tokens, texts, 50)
    }
    assert scores["perplexity"].value == pytest.approx(256)
    assert scores["bits per byte"].value == pytest.approx(8)
    assert scores["nats per text"].value == pytest.approx(np.mean(tokens) * math.log(256))
    assert scores["bits per byte"].half_width == pytest.approx(0)
    assert all(score.lower_is_better for score in scores.values())


def test_bits_per_byte_do_not_depend_on_the_tokenization() -> None:
    texts, nats = ["some words here", "and more"], [20.0, 11.0]
    coarse, fine = (
        language_model_scores([-value for value in nats], tokens, texts, 50) for tokens in ([4, 3], [16, 9])
    )
    by_name = [{score.metric: score.value for score in scores} for scores in (coarse, fine)]
    assert by_name[0]["bits per byte"] == by_name[1]["bits per byte"]
    assert by_name[0]["perplexity"] > by_name[1]["perplexity"]


def test_the_interval_is_that_of_a_mean() -> None:
    nats = np.random.default_rng(3).gamma(4.0, 5.0, 400)
    (score,) = (
        score
        for score in language_model_scores((-nats).tolist(), [10] * 400, ["x" * 9] * 400)
        if score.metric == "nats per text"
    )
    assert score.half_width == pytest.approx(1.96 * nats.std() / 20, rel=0.15)
    assert score.mean == pytest.approx(score.value, abs=score.half_width / 5)


def test_scoring_no_text_is_an_error() -> None:
    with pytest.raises(DataError, match="no text"):
        language_model_scores([], [], [])
