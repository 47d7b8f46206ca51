import numpy as np
import pytest
import torch

from heed.backends.base import TORCH_OPS
from heed.decoding.decode import greedy_search, sample, sample_tokens, uniform_numbers
from heed.errors import InputError
from heed.search_config import SearchConfig
from tests.decoding.small_models import small_model
from tests.decoding.tables import Tables
from tests.reference.backends import start_search

DRAWS = 4000


def test_a_sample_is_the_same_in_any_batch(device: torch.device) -> None:
    model, sources = small_model(2, device)
    config = SearchConfig(sample=True, nbest=3, top_p=0.95)
    together = sample(start_search([model], sources), [12] * 4, config, sentence_ids=[10, 11, 12, 13])
    for order in ([3, 0], [2], [1, 2, 3]):
        batch = sample(
            start_search([model], [sources[index] for index in order]),
            [12] * len(order),
            config,
            [10 + index for index in order],
        )
        for hypotheses, index in zip(batch, order, strict=True):
            assert [hypothesis.ids for hypothesis in hypotheses] == [hypothesis.ids for hypothesis in together[index]]
    assert len({hypothesis.ids for hypotheses in together for hypothesis in hypotheses}) > 6


def test_seed_sentence_id_and_copy_each_change_the_random_numbers() -> None:
    tables = Tables(0, vocabulary=50, eos_bonus=-5)
    config = SearchConfig(sample=True, nbest=4)

    def ids(seed: int, sentence_id: int) -> list[tuple[int, ...]]:
        [hypotheses] = sample(tables.start([0]), [9], config.model_copy(update={"seed": seed}), [sentence_id])
        return [hypothesis.ids for hypothesis in hypotheses]

    assert ids(1, 0) == ids(1, 0)
    assert len(set(ids(1, 0) + ids(2, 0) + ids(1, 1))) == 12


def test_a_larger_maximum_length_changes_no_random_number() -> None:
    long = uniform_numbers(seed=7, sentence=3, copy=1, max_length=30)
    assert np.array_equal(uniform_numbers(7, 3, 1, max_length=5), long[:6])
    assert len(long) == 31
    assert ((long >= 0) & (long < 1)).all()


@pytest.mark.parametrize(
    ("settings", "kept"),
    [({}, 6), ({"temperature": 0.5}, 6), ({"temperature": 2.0}, 6), ({"top_k": 3}, 3), ({"top_p": 0.7}, 3)],
    ids=str,
)
def test_tokens_are_sampled_by_their_probability(settings: dict[str, float], kept: int) -> None:
    """Chi-square test with up to five degrees of freedom: above 25 for one seed in 7,000."""
    probabilities = torch.tensor([0.05, 0.3, 0.0, 0.15, 0.1, 0.36, 0.04], dtype=torch.float64)
    config = SearchConfig.model_validate({"sample": True, **settings})
    random = torch.tensor([uniform_numbers(1, sentence, 0, 0)[0] for sentence in range(DRAWS)])
    tokens = sample_tokens(probabilities.log().float().expand(DRAWS, -1), random, config, TORCH_OPS)
    counts = torch.bincount(tokens, minlength=7)

    weights = probabilities ** (1 / config.temperature)
    weights[weights.argsort(descending=True)[kept:]] = 0
    expected = weights / weights.sum() * DRAWS
    assert not counts[expected == 0].any()
    assert float(((counts - expected)[expected > 0] ** 2 / expected[expected > 0]).sum()) < 25


def test_the_sampled_token_is_the_first_whose_cumulative_probability_exceeds_the_random_number() -> None:
    log_probs = torch.tensor([0.0, -torch.inf, 0.0, 0.0, 0.0]) - 1.0
    random = torch.tensor([0.0, 0.25, 0.5 - 2**-53, 0.5, 1 - 2**-53], dtype=torch.float64)
    tokens = sample_tokens(log_probs.expand(5, -1), random, SearchConfig(sample=True), TORCH_OPS)
    assert tokens.tolist() == [0, 2, 2, 3, 4]


@pytest.mark.parametrize("settings", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-9}], ids=str)
def test_sampling_from_a_single_token_is_greedy(settings: dict[str, float]) -> None:
    tables = Tables(4, vocabulary=9)
    start, lengths = tables.start(range(6)), [7, 3, 5, 9, 0, 2]
    config = SearchConfig.model_validate({"sample": True, "nbest": 2, "min_length": 0, **settings})
    results = sample(start, lengths, config, range(6))
    assert results == [[hypothesis, hypothesis] for hypothesis in greedy_search(start, lengths, config)]


def test_the_log_probability_of_a_sample_is_that_of_the_unmodified_model() -> None:
    tables = Tables(4, vocabulary=9, eos_bonus=-1)
    config = SearchConfig(sample=True, nbest=3, temperature=3.0, top_k=5, length_penalty=1.0)
    for number, hypotheses in enumerate(sample(tables.start(range(5)), [6] * 5, config, range(5), [(8,)] * 5)):
        for hypothesis in hypotheses:
            steps = [tables.log_probs(number, hypothesis.ids[:length]) for length in range(len(hypothesis.ids) + 1)]
            expected = sum(row[token] for row, token in zip(steps, [*hypothesis.ids, 1], strict=True))
            assert hypothesis.log_prob == pytest.approx(expected)
            assert hypothesis.ids[0] == 8
        assert [hypothesis.score for hypothesis in hypotheses] == sorted(
            (hypothesis.score for hypothesis in hypotheses), reverse=True
        )


def test_sampling_needs_a_sentence_id_per_sentence() -> None:
    with pytest.raises(InputError, match="found 3 sentence ids for 2 sentences"):
        sample(Tables(0, vocabulary=5).start([0, 1]), [4, 4], SearchConfig(sample=True), [0, 1, 2])


def test_sampling_under_unsatisfiable_constraints_is_refused() -> None:
    config = SearchConfig(sample=True, no_repeat_ngram=1, min_length=4)
    with pytest.raises(InputError, match="sentence 0 has log-probability -inf"):
        sample(Tables(0, vocabulary=4).start([0]), [5], config, [0])
