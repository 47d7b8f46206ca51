import re

import pytest
import torch

from heed import ModelConfig, Transformer
from heed.backends.base import State
from heed.decoding.decode import greedy_search
from heed.decoding.engine import max_output_lengths
from heed.decoding.search import beam_search
from heed.errors import InputError
from heed.search_config import SearchConfig
from tests.decoding.small_models import SMALL, forced_log_probs, small_model
from tests.model.examples import VOCAB, make
from tests.reference.backends import start_search


def two_models(device: torch.device) -> tuple[list[Transformer], list[list[int]]]:
    """Two models of different widths with the same vocabulary, and sources."""
    model, sources = small_model(2, device)
    return [model, make(ModelConfig.model_validate({**SMALL, "d_model": 8}), device)], sources


def next_log_probs(models: list[Transformer], sources: list[list[int]]) -> torch.Tensor:
    """The log-probabilities of the second step, one row per sentence."""
    start = start_search(models, sources)
    _, state = start.step(start.first, start.state)
    log_probs, _ = start.step(torch.full_like(start.first, 4), state)
    return log_probs


def test_a_step_returns_the_models_log_probabilities_and_excludes_pad_and_bos(device: torch.device) -> None:
    [model, _], sources = two_models(device)
    log_probs = next_log_probs([model], sources)
    assert log_probs.dtype == torch.float32
    assert (log_probs[:, :2] == -torch.inf).all()
    for row, source in zip(log_probs, sources, strict=True):
        expected = forced_log_probs(model, source, (4,))[-1, 2:]  # not renormalised without padding and BOS
        torch.testing.assert_close(row[2:], expected, rtol=0, atol=1e-6)


def test_an_ensemble_of_a_model_with_itself_equals_the_model(device: torch.device) -> None:
    [model, _], sources = two_models(device)
    config = SearchConfig(beam=1)
    single = greedy_search(start_search([model], sources), [9] * 4, config)
    ensemble = greedy_search(start_search([model, model], sources), [9] * 4, config)
    assert [hypothesis.ids for hypothesis in ensemble] == [hypothesis.ids for hypothesis in single]
    assert [hypothesis.log_prob for hypothesis in ensemble] == pytest.approx(
        [hypothesis.log_prob for hypothesis in single], abs=1e-5
    )


def test_an_ensemble_averages_probabilities(device: torch.device) -> None:
    models, sources = two_models(device)
    for row, source in zip(next_log_probs(models, sources), sources, strict=True):
        probabilities = torch.stack([forced_log_probs(model, source, (4,))[-1].exp() for model in models])
        torch.testing.assert_close(row[2:].exp(), probabilities.mean(0)[2:], rtol=1e-5, atol=0)


def test_batching_does_not_change_the_search_of_an_ensemble(device: torch.device) -> None:
    models, sources = two_models(device)
    together = beam_search(start_search(models, sources), [9, 4, 12, 0], SearchConfig(nbest=3))
    assert isinstance(start_search(models, sources).state, State)
    for source, length, expected in zip(sources, [9, 4, 12, 0], together, strict=True):
        [alone] = beam_search(start_search(models, [source]), [length], SearchConfig(nbest=3))
        assert [hypothesis.ids for hypothesis in alone] == [hypothesis.ids for hypothesis in expected]


def test_a_translation_may_be_fifty_tokens_longer_than_its_source() -> None:
    model, sources = Transformer(ModelConfig.model_validate(SMALL)), [[5] * 3, [], [5] * 40]
    assert max_output_lengths([model.config], sources, SearchConfig()) == [53, 50, 90]
    assert max_output_lengths([model.config], sources, SearchConfig(min_length=60)) == [60, 60, 90]
    assert max_output_lengths([model.config], sources, SearchConfig(max_length=7)) == [7, 7, 7]


def test_a_fitted_bound_limits_the_output_length_by_the_source_length() -> None:
    config = ModelConfig.model_validate(SMALL)
    bound = SearchConfig(max_length_ratio=2.5, max_length_extra=3)
    assert max_output_lengths([config], [[5] * 3, [], [5] * 40], bound) == [11, 3, 103]
    assert max_output_lengths([config], [[]], SearchConfig(max_length_ratio=0, max_length_extra=0)) == [1]
    assert max_output_lengths([config], [[5] * 600], SearchConfig(max_length_ratio=100)) == [10_000]


def test_learned_positions_limit_the_output_length(device: torch.device) -> None:
    model = make(ModelConfig.model_validate({**SMALL, "positions": "learned", "max_length": 9}), device)
    with torch.no_grad():
        model.vocabulary.embedding.weight[2] = 0
    sources = [[5, 6, 7], [3]]
    lengths = max_output_lengths([ModelConfig.model_validate(SMALL), model.config], sources, SearchConfig())
    assert lengths == [8, 8]
    results = beam_search(start_search([model], sources), lengths, SearchConfig(min_length=8))
    assert [len(hypotheses[0].ids) for hypotheses in results] == [8, 8]


def test_an_ensemble_with_different_vocabularies_is_refused() -> None:
    model, larger = (
        Transformer(ModelConfig.model_validate({**SMALL, "vocab_size": size})) for size in (VOCAB, VOCAB + 1)
    )
    with pytest.raises(InputError, match=re.escape(f"must have the same vocab_size, found [{VOCAB}, {VOCAB + 1}]")):
        start_search([model, larger], [[3]])
    with pytest.raises(InputError, match=re.escape("must have the same eos_id, found [2, 5]")):
        start_search([model, Transformer(ModelConfig.model_validate({**SMALL, "eos_id": 5}))], [[3]])
    with pytest.raises(InputError, match="a search needs a source, found 0 sources"):
        start_search([model], [])
