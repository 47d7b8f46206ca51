from collections.abc import Sequence
from typing import Any

import pytest

from heed import ModelConfig, SearchConfig, Translator
from heed.backends.protocol import Hypothesis
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


class EchoEngine(Engine):
    """Outputs its sources, truncated to max_length; records the batch size and settings of each search."""

    def __init__(self) -> None:
        super().__init__(UnusedBackend())
        self.searches: list[tuple[int, SearchConfig]] = []

    def search(
        self, sources: Sequence[Sequence[int]], config: SearchConfig, numbers: Sequence[int], *_: Any
    ) -> list[list[Hypothesis]]:
        assert len(numbers) == len(sources)
        self.searches.append((len(sources), config))
        return [[Hypothesis(tuple(ids[: config.max_length]), 0.0, 0.0)] for ids in sources]


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> EchoEngine:
    """An engine with a simulated clock by which every search takes a second."""
    engine = EchoEngine()
    monkeypatch.setattr("heed.benchmarking.translating.time.perf_counter", lambda: float(len(engine.searches)))
    return engine


def translator(echo: EchoEngine) -> Translator:
    search = SearchConfig(beam=2, nbest=2, sample=True, length_penalty=1.5)
    return Translator([], tokenizers_of(CONFIG), search, engine=echo)


def test_sentences_are_translated_in_batches_with_the_models_own_search_settings(echo: EchoEngine) -> None:
    jobs = [TranslationJob([[4] * 3] * 7, 3, 5), TranslationJob([[4] * 9] * 2, 1, 1, 6)]
    first, second = measure_translation(translator(echo), jobs, 1)
    assert [size for size, _ in echo.searches] == [3, 1, 3, 3, 1, 1, 1]  # two warm-ups, then all
    last = echo.searches[-1][1]
    assert (last.beam, last.nbest, last.sample, last.length_penalty) == (1, 1, False, 1.5)
    assert (last.min_length, last.max_length, echo.searches[0][1].min_length) == (6, 6, 0)
    assert first == TranslationSpeed(3, 5, 7, 4.0, 4.0, tokens_per_second=7 * 4 / 3, seconds_per_sentence=3 / 7)
    assert second == TranslationSpeed(1, 1, 2, 10.0, 7.0, tokens_per_second=2 * 7 / 2, seconds_per_sentence=1.0)


def test_the_median_of_the_rounds_counts(echo: EchoEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 9.0, 10.0, 11.0, 12.0, 16.0])  # three rounds of 9, 1 and 4 seconds
    monkeypatch.setattr("heed.benchmarking.translating.time.perf_counter", lambda: next(clock))
    (speed,) = measure_translation(translator(echo), [TranslationJob([[4]], 1, 1)], 3)
    assert speed.seconds_per_sentence == 4.0


def test_the_roofline_per_sentence_is_that_of_the_batch_divided_by_its_size() -> None:
    speed = TranslationSpeed(8, 4, 16, 10.0, 12.0, 100.0, 0.12)
    batch_seconds = SearchWorkload(8, 4, 10.0, 12.0).roofline_seconds(CONFIG, 1e9, 1e6, 4)
    assert speed.roofline_seconds_per_sentence(CONFIG, 1e9, 1e6) == batch_seconds / 8


def test_sources_are_drawn_repeated_and_rechunked() -> None:
    sources = random_sources(3, 50, 9)
    assert sources == random_sources(3, 50, 9)
    assert [len(ids) for ids in sources] == [50, 50, 50]
    assert {token for ids in sources for token in ids} == set(range(3, 9))
    assert repeat_sources([[4], [5, 5]], 3) == [[5, 5], [4], [4]]
    assert repeat_sources([[4], [5, 5]], 1) == [[5, 5], [4]]
    assert rechunk([[4, 5], [6]], 2, 3) == [[4, 5], [6, 4], [5, 6]]
