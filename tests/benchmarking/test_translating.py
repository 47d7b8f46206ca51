from collections.abc import Sequence
from typing import Any

import pytest

from heed import ModelConfig, SearchConfig, Translator
from heed.backends.base import Hypothesis
from heed.benchmarking.limits import SearchWorkload
from heed.benchmarking.translating import (
    TranslationJob,
    TranslationSpeed,
    measure_translation,
    random_sources,
    rechunk,
    repeat_sources,
)
from heed.decoding.engine import Engine
from tests.interop.engine_models import tokenizers_of
from tests.reference.backends import UnusedBackend

CONFIG = ModelConfig(vocab_size=20, d_model=8, heads=2, encoder_layers=1, decoder_layers=1, d_ff=8)


class Echo(Engine):
    """Says what it reads, or as much of it as it may; remembers how it was asked."""

    def __init__(self) -> None:
        super().__init__(UnusedBackend())
        self.asked: list[tuple[int, SearchConfig]] = []

    def search(
        self, sources: Sequence[Sequence[int]], config: SearchConfig, numbers: Sequence[int], *_: Any
    ) -> list[list[Hypothesis]]:
        assert len(numbers) == len(sources)
        self.asked.append((len(sources), config))
        return [[Hypothesis(tuple(ids[: config.max_length]), 0.0, 0.0)] for ids in sources]


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> Echo:
    """An engine by whose clock every search takes a second."""
    engine = Echo()
    monkeypatch.setattr("heed.benchmarking.translating.time.perf_counter", lambda: float(len(engine.asked)))
    return engine


def translator(echo: Echo) -> Translator:
    search = SearchConfig(beam=2, nbest=2, sample=True, length_penalty=1.5)
    return Translator([], tokenizers_of(CONFIG), search, engine=echo)


def test_sentences_are_translated_so_many_at_a_time_with_the_models_own_settings(echo: Echo) -> None:
    jobs = [TranslationJob([[4] * 3] * 7, 3, 5), TranslationJob([[4] * 9] * 2, 1, 1, 6)]
    first, second = measure_translation(translator(echo), jobs, 1)
    assert [size for size, _ in echo.asked] == [3, 1, 3, 3, 1, 1, 1]  # two that warm up, then all
    last = echo.asked[-1][1]
    assert (last.beam, last.nbest, last.sample, last.length_penalty) == (1, 1, False, 1.5)
    assert (last.min_length, last.max_length, echo.asked[0][1].min_length) == (6, 6, 0)
    assert first == TranslationSpeed(3, 5, 7, 4.0, 4.0, tokens_per_second=7 * 4 / 3, seconds_per_sentence=3 / 7)
    assert second == TranslationSpeed(1, 1, 2, 10.0, 7.0, tokens_per_second=2 * 7 / 2, seconds_per_sentence=1.0)


def test_the_middle_of_the_rounds_counts(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 9.0, 10.0, 11.0, 12.0, 16.0])  # three rounds of 9, 1 and 4 seconds
    monkeypatch.setattr("heed.benchmarking.translating.time.perf_counter", lambda: next(clock))
    (found,) = measure_translation(translator(echo), [TranslationJob([[4]], 1, 1)], 3)
    assert found.seconds_per_sentence == 4.0


def test_the_least_time_a_sentence_is_that_of_its_search() -> None:
    timing = TranslationSpeed(8, 4, 16, 10.0, 12.0, 100.0, 0.12)
    whole = SearchWorkload(8, 4, 10.0, 12.0).roofline_seconds(CONFIG, 1e9, 1e6, 4)
    assert timing.roofline_seconds_per_sentence(CONFIG, 1e9, 1e6) == whole / 8


def test_sources_are_drawn_repeated_and_cut() -> None:
    drawn = random_sources(3, 50, 9)
    assert drawn == random_sources(3, 50, 9)
    assert [len(ids) for ids in drawn] == [50, 50, 50]
    assert {token for ids in drawn for token in ids} == set(range(3, 9))
    assert repeat_sources([[4], [5, 5]], 3) == [[5, 5], [4], [4]]
    assert repeat_sources([[4], [5, 5]], 1) == [[5, 5], [4]]
    assert rechunk([[4, 5], [6]], 2, 3) == [[4, 5], [6, 4], [5, 6]]
