import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heed import Transformer
from heed.decoding.decode import greedy_search, greedy_stream
from heed.decoding.engine import max_output_lengths
from heed.decoding.search import beam_search
from heed.errors import InputError
from heed.search_config import SearchConfig
from tests.decoding.small_models import forced_log_probs, small_model
from tests.decoding.tables import Tables
from tests.reference.backends import start_search


def uncached_greedy(model: Transformer, source: list[int]) -> list[int]:
    """Greedy decoding of one sentence that computes the whole prefix again for every token."""
    tokens: list[int] = []
    for _ in range(len(source) + 50):
        token = int(forced_log_probs(model, source, tuple(tokens))[-1, 2:].argmax()) + 2
        if token == 2:
            break
        tokens.append(token)
    return tokens


def batched_greedy(model: Transformer, sources: list[list[int]]) -> list[list[int]]:
    lengths = max_output_lengths([model.config], sources, SearchConfig())
    return [
        list(hypothesis.ids) for hypothesis in greedy_search(start_search([model], sources), lengths, SearchConfig())
    ]


def test_greedy_search_equals_uncached_decoding_of_each_sentence_alone(device: torch.device) -> None:
    lengths = set()
    for seed in (1, 5):
        model, sources = small_model(seed, device)
        together = batched_greedy(model, sources)
        assert together == [uncached_greedy(model, source) for source in sources]
        assert [batched_greedy(model, [source])[0] for source in sources] == together
        lengths |= {len(tokens) for tokens in together}
    assert len(lengths) > 3


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    steps=st.booleans(),
    lengths=st.lists(st.integers(2, 8), min_size=1, max_size=4),
    min_length=st.integers(0, 2),
    no_repeat_ngram=st.sampled_from((None, 1, 2)),
    alpha=st.sampled_from((-1.0, 0.6, 2.5)),
)
def test_beam_of_one_is_greedy(
    seed: int, steps: bool, lengths: list[int], min_length: int, no_repeat_ngram: int | None, alpha: float
) -> None:
    tables = Tables(seed, vocabulary=7, steps=steps)
    config = SearchConfig(beam=1, min_length=min_length, no_repeat_ngram=no_repeat_ngram, length_penalty=alpha)
    prefixes = [(4, 0)[: number % 3] for number in range(len(lengths))]
    start = tables.start(range(len(lengths)))
    hypotheses = greedy_search(start, lengths, config, prefixes)
    assert beam_search(start, lengths, config, prefixes) == [[hypothesis] for hypothesis in hypotheses]


def test_beam_of_one_is_greedy_on_a_transformer(device: torch.device) -> None:
    model, sources = small_model(2, device)
    start = start_search([model], sources)
    hypotheses = greedy_search(start, [9, 30, 3, 40], SearchConfig(beam=1))
    results = beam_search(start, [9, 30, 3, 40], SearchConfig(beam=1))
    assert [hypothesis.ids for hypothesis in hypotheses] == [beam_hypotheses[0].ids for beam_hypotheses in results]
    assert [hypothesis.log_prob for hypothesis in hypotheses] == pytest.approx(
        [beam_hypotheses[0].log_prob for beam_hypotheses in results], abs=1e-5
    )


def test_a_finished_greedy_sentence_leaves_the_batch() -> None:
    tables = Tables(0, vocabulary=6, eos_bonus=-40)
    greedy_search(tables.start([0, 1, 2]), [3, 1, 5], SearchConfig(beam=1))
    assert tables.rows_seen == [3, 3, 2, 2, 1, 1]


def test_a_stream_gives_each_token_as_soon_as_it_is_chosen() -> None:
    tables = Tables(5, vocabulary=6, eos_bonus=-3)
    [hypothesis] = greedy_search(tables.start([0]), [9], SearchConfig(), [(4, 4)])
    tables.rows_seen.clear()
    stream = greedy_stream(tables.start([0]), 9, SearchConfig(), (4, 4))
    for number, token in enumerate(hypothesis.ids):
        assert next(stream) == token
        assert len(tables.rows_seen) == number + 1
    assert not list(stream)


def test_a_stream_of_two_sentences_is_refused() -> None:
    with pytest.raises(InputError, match="found 1 maximum lengths for 2 sentences"):
        next(greedy_stream(Tables(0, vocabulary=6).start([0, 1]), 9, SearchConfig()))


def test_constraints_that_no_sequence_satisfies_are_refused() -> None:
    config = SearchConfig(no_repeat_ngram=1, min_length=4)
    with pytest.raises(InputError, match="sentence 0 has log-probability -inf"):
        greedy_search(Tables(0, vocabulary=4).start([0]), [5], config)
    with pytest.raises(InputError, match="min_length = 4, no_repeat_ngram = 1"):
        list(greedy_stream(Tables(0, vocabulary=4).start([0]), 5, config))
