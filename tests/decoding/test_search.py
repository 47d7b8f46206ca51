import re
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heed import Transformer
from heed.backends.base import State
from heed.backends.protocol import Hypothesis
from heed.backends.torch.search_ops import topk
from heed.decoding.search import beam_search
from heed.errors import InputError
from heed.search_config import SearchConfig
from tests.decoding.reference_beam import NextLogProbs, exhaustive, reference_beam
from tests.decoding.small_models import forced_log_probs, small_model
from tests.decoding.tables import EOS, EqualTokens, Prefixes, Tables
from tests.reference.backends import start_search

ALPHAS = (-1.0, 0.0, 0.6, 1.0, 2.5)


@st.composite
def searches(draw: st.DrawFn) -> tuple[SearchConfig, list[int], list[tuple[int, ...]], int]:
    """Search settings, maximum lengths, prefixes and a vocabulary size, edge cases included."""
    vocabulary, beam = draw(st.integers(2, 7)), draw(st.integers(1, 8))
    config = SearchConfig(
        beam=beam,
        nbest=draw(st.integers(1, beam)),
        length_penalty=draw(st.sampled_from(ALPHAS)),
        stop=draw(st.sampled_from(("exact", "exact", "first"))),
        min_length=draw(st.integers(0, 3)),
        no_repeat_ngram=draw(st.sampled_from((None, None, 1, 2, 3))),
    )
    tokens = st.sampled_from([token for token in range(vocabulary) if token != EOS])
    prefixes = draw(st.lists(st.lists(tokens, max_size=3).map(tuple), min_size=1, max_size=4))
    lengths = [draw(st.integers(max(config.min_length, len(prefix)), 6)) for prefix in prefixes]
    return config, lengths, prefixes, vocabulary


@settings(max_examples=150, deadline=None)
@given(search=searches(), seed=st.integers(0, 10**6), steps=st.booleans())
def test_beam_search_equals_a_reference_that_never_stops_early(
    search: tuple[SearchConfig, list[int], list[tuple[int, ...]], int], seed: int, steps: bool
) -> None:
    """Tokens, log-probabilities, scores and the order of equal hypotheses (`steps` makes many equal) are the same."""
    config, lengths, prefixes, vocabulary = search
    tables = Tables(seed, vocabulary, steps=steps)
    expected = [
        reference_beam(partial(tables.log_probs, sentence), EOS, config, length, prefix)
        for sentence, (length, prefix) in enumerate(zip(lengths, prefixes, strict=True))
    ]
    start = tables.start(range(len(lengths)))
    if all(expected):
        assert beam_search(start, lengths, config, prefixes) == expected
    else:  # the vocabulary is so small that neither a token nor EOS is allowed
        with pytest.raises(InputError, match=f"no_repeat_ngram = {config.no_repeat_ngram}"):
            beam_search(start, lengths, config, prefixes)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_beam_finds_the_exhaustive_best_on_a_tiny_vocabulary(alpha: float) -> None:
    config = SearchConfig(beam=81, nbest=20, length_penalty=alpha)
    for seed in range(4):
        tables = Tables(seed, vocabulary=4)
        best = [exhaustive(partial(tables.log_probs, number), EOS, config, 4)[:20] for number in range(2)]
        results = beam_search(tables.start(range(2)), [4, 4], config)
        assert [[hypothesis.ids for hypothesis in hypotheses] for hypotheses in results] == [
            [hypothesis.ids for hypothesis in hypotheses] for hypotheses in best
        ]


@pytest.mark.parametrize("alpha", ALPHAS)
def test_exact_stop_saves_steps_but_never_changes_the_result(alpha: float) -> None:
    lengths, rows = [4, 14, 7], 0
    for seed in range(12):
        tables = Tables(seed, vocabulary=9)
        config = SearchConfig(beam=4, nbest=1 + seed % 3, length_penalty=alpha)
        results = beam_search(tables.start(range(3)), lengths, config)
        rows += sum(tables.rows_seen)
        for number, length in enumerate(lengths):
            assert results[number] == reference_beam(partial(tables.log_probs, number), EOS, config, length)
    assert rows < 12 * 4 * sum(length + 1 for length in lengths)


def test_first_stop_ends_when_nbest_hypotheses_have_finished() -> None:
    for seed in range(20):
        tables = Tables(seed, vocabulary=9)
        config = SearchConfig(beam=4, nbest=2, length_penalty=1.0)
        exact = beam_search(tables.start([0]), [12], config)[0]
        steps = len(tables.rows_seen)
        first = beam_search(tables.start([0]), [12], config.model_copy(update={"stop": "first"}))[0]
        assert len(first) == 2
        assert len(tables.rows_seen) - steps <= steps
        assert first[0].score <= exact[0].score


def test_each_sentence_alone_equals_the_same_sentence_in_any_batch() -> None:
    tables, config = Tables(3, vocabulary=8), SearchConfig(beam=3, nbest=3)
    lengths = [5, 1, 8, 3, 0]
    alone = {number: beam_search(tables.start([number]), [lengths[number]], config)[0] for number in range(5)}
    for order in ([0, 1, 2, 3, 4], [4, 2, 0], [3, 1]):
        together = beam_search(tables.start(order), [lengths[number] for number in order], config)
        assert together == [alone[number] for number in order]


def test_finished_sentences_leave_the_batch() -> None:
    tables = Tables(0, vocabulary=6, eos_bonus=-40)  # no hypothesis finishes before the maximum length
    results = beam_search(tables.start([0, 1, 2]), [3, 1, 5], SearchConfig(beam=2))
    assert tables.rows_seen == [6, 6, 4, 4, 2, 2]
    assert [len(hypotheses[0].ids) for hypotheses in results] == [3, 1, 5]


def test_equal_scores_are_ranked_by_beam_index_then_by_token(device: torch.device) -> None:
    start = EqualTokens([-1.0], vocabulary=300).start([0], device)
    results = beam_search(start, [2], SearchConfig(beam=3, nbest=3, length_penalty=0.0))
    assert [hypothesis.ids for hypothesis in results[0]] == [(), (0,), (0, 0)]
    assert [hypothesis.log_prob for hypothesis in results[0]] == [-1, -2, -3]


def test_topk_equals_a_stable_sort(device: torch.device) -> None:
    for levels in (2, 5, 1000):
        values = -torch.randint(levels, (20, 400), device=device).float()
        values[:3, 7:] = -torch.inf
        for count in (1, 5, 60, 400, 1000):
            best, tokens = topk(values, count)
            expected, order = values.sort(dim=-1, descending=True, stable=True)
            real = expected[:, :count] > -torch.inf
            assert torch.equal(best, expected[:, :count])
            assert torch.equal(tokens[real], order[:, :count][real])


def test_min_length_no_repeat_ngram_and_prefix_hold_for_every_hypothesis() -> None:
    tables = Tables(1, vocabulary=4, eos_bonus=2.0)
    unconstrained = beam_search(tables.start(range(10)), [8] * 10, SearchConfig(beam=3, nbest=3))
    assert min(len(hypothesis.ids) for hypotheses in unconstrained for hypothesis in hypotheses) < 4
    long = beam_search(tables.start(range(10)), [8] * 10, SearchConfig(beam=3, nbest=3, min_length=4))
    assert min(len(hypothesis.ids) for hypotheses in long for hypothesis in hypotheses) >= 4
    no_repeated_bigram = SearchConfig(beam=3, nbest=3, min_length=5, no_repeat_ngram=2)
    for hypothesis in (
        hypothesis
        for hypotheses in beam_search(tables.start(range(10)), [8] * 10, no_repeated_bigram)
        for hypothesis in hypotheses
    ):
        bigrams = list(zip(hypothesis.ids, hypothesis.ids[1:], strict=False))
        assert len(set(bigrams)) == len(bigrams)
    prefixed = beam_search(tables.start([0, 1]), [8, 8], SearchConfig(beam=3, nbest=3), [(2, 2, 3), ()])
    assert all(hypothesis.ids[:3] == (2, 2, 3) for hypothesis in prefixed[0])
    assert prefixed[1] == unconstrained[1]


def test_a_vocabulary_smaller_than_the_beam_gives_fewer_hypotheses() -> None:
    results = beam_search(Tables(0, vocabulary=2).start([0]), [2], SearchConfig(beam=6, nbest=6))
    assert sorted(hypothesis.ids for hypothesis in results[0]) == [(), (0,), (0, 0)]


# On Transformers ------------------------------------------------------------------------------------------------------


def as_reference(model: Transformer, source: list[int]) -> NextLogProbs:
    def log_probs(tokens: tuple[int, ...]) -> list[float]:
        row = forced_log_probs(model, source, tokens)[-1]
        row[[0, 1]] = -torch.inf
        return row.tolist()

    return log_probs


@pytest.mark.parametrize(
    "config",
    [
        SearchConfig(),
        SearchConfig(beam=1, min_length=2),
        SearchConfig(beam=3, nbest=3, length_penalty=-1.0, no_repeat_ngram=1),
        SearchConfig(beam=5, nbest=2, length_penalty=1.5, no_repeat_ngram=2, min_length=3),
        SearchConfig(beam=2, length_penalty=0.0, stop="first"),
    ],
    ids=lambda config: f"beam {config.beam}",
)
def test_beam_search_equals_the_reference_on_random_transformers(config: SearchConfig, device: torch.device) -> None:
    model, sources = small_model(config.beam, device)
    prefixes, lengths = [(), (4, 4), (), (7,)], [6, 4, 5, 3]
    results = beam_search(start_search([model], sources), lengths, config, prefixes)
    for hypotheses, source, length, prefix in zip(results, sources, lengths, prefixes, strict=True):
        expected = reference_beam(as_reference(model, source), 2, config, length, prefix)
        assert [hypothesis.ids for hypothesis in hypotheses] == [hypothesis.ids for hypothesis in expected]
        assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx(
            [hypothesis.score for hypothesis in expected], abs=1e-5
        )


def test_beam_score_equals_forced_score(device: torch.device) -> None:
    model, sources = small_model(1, device)
    results = beam_search(start_search([model], sources), [30, 10, 40, 20], SearchConfig(nbest=4), [(), (), (5, 3), ()])
    for source, hypotheses in zip(sources, results, strict=True):
        for hypothesis in hypotheses:
            rows = forced_log_probs(model, source, hypothesis.ids)
            forced = rows.gather(1, torch.tensor([[*hypothesis.ids, 2]], device=device).T).double().sum()
            assert hypothesis.log_prob == pytest.approx(float(forced), abs=1e-4)
            assert hypothesis.score == pytest.approx(hypothesis.log_prob / ((5 + len(hypothesis.ids) + 1) / 6) ** 0.6)


def test_batching_never_changes_a_beam_search_on_a_transformer(device: torch.device) -> None:
    model, sources = small_model(2, device)
    together = beam_search(start_search([model], sources), [20] * 4, SearchConfig(nbest=2))
    assert len({len(hypotheses[0].ids) for hypotheses in together}) > 1
    for source, expected in zip(sources, together, strict=True):
        [alone] = beam_search(start_search([model], [source]), [20], SearchConfig(nbest=2))
        assert [hypothesis.ids for hypothesis in alone] == [hypothesis.ids for hypothesis in expected]


# Refusals -------------------------------------------------------------------------------------------------------------


def test_invalid_lengths_and_prefixes_are_refused() -> None:
    start = Tables(0, vocabulary=5).start([0, 1])
    config = SearchConfig(min_length=3)
    with pytest.raises(InputError, match="found 3 maximum lengths for 2 sentences"):
        beam_search(start, [4, 4, 4], config)
    with pytest.raises(InputError, match="found 1 prefixes for 2 sentences"):
        beam_search(start, [4, 4], config, [(2,)])
    with pytest.raises(InputError, match=re.escape("sentence 1 is limited to 2 tokens")):
        beam_search(start, [4, 2], config)
    with pytest.raises(InputError, match=re.escape("limited to 4 tokens, fewer than its prefix (5) or min_length (3)")):
        beam_search(start, [4, 4], config, [(2,) * 5, ()])
    with pytest.raises(InputError, match=re.escape(f"sentence 1 has eos or a negative id: [0, {EOS}]")):
        beam_search(start, [4, 4], config, [(), (0, EOS)])
    with pytest.raises(InputError, match=re.escape("sentence 0 has eos or a negative id: [-1]")):
        beam_search(start, [4, 4], config, [(-1,), ()])
    with pytest.raises(InputError, match="a prefix has id 5, outside the vocabulary of 5 tokens"):
        beam_search(start, [4, 4], config, [(5,), ()])


def test_nan_log_probabilities_are_refused() -> None:
    start = EqualTokens([-1.0, float("nan")], vocabulary=5).start([0, 1])
    for stop in ("exact", "first"):
        with pytest.raises(InputError, match="sentence 1 has log-probability nan"):
            beam_search(start, [4, 4], SearchConfig(stop=stop))


def test_a_prefix_of_probability_zero_is_refused(device: torch.device) -> None:
    model, sources = small_model(0, device)
    with pytest.raises(InputError, match="sentence 2 has log-probability -inf"):
        beam_search(start_search([model], sources), [9] * 4, SearchConfig(), [(), (4,), (1,), ()])


def test_table_states_implement_state_and_equal_hypotheses_have_equal_hashes() -> None:
    assert isinstance(Prefixes(()), State)
    assert {Hypothesis((3,), -1.0, -1.0), Hypothesis((3,), -1.0, -1.0)} == {Hypothesis((3,), -1.0, -1.0)}
