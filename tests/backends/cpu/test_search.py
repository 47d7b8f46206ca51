"""A whole search in compiled code equals the reference search step by step, for every configuration that it accepts."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heed import ModelConfig, SearchConfig, Transformer
from heed.backends.base import TORCH_OPS
from heed.backends.cpu.decoder import NativeDecoder
from heed.backends.cpu.library import missing_for_compiled_code
from heed.backends.protocol import Hypothesis, Prefixes, SearchMonitor, Sources
from heed.backends.select import inference_backend
from heed.backends.stepping import ReferenceStepper, start_from
from heed.decoding.engine import Engine, max_output_lengths
from heed.decoding.stepwise import run_search
from heed.errors import InputError
from tests.backends.decoder_steps import DESIGNS, SEPARATE_VOCABULARIES, design_name
from tests.model.examples import FIRST_WORD, SHAPE, make

CPU = torch.device("cpu")
ODD_CONFIG = ModelConfig.model_validate({**SHAPE, "d_model": 84, "heads": 3, "d_ff": 131, "vocab_size": 203})
SOURCES = [[5, 7, 4], [3], [9, 9, 12, 3, 4, 5, 8], [6, 6], [12, 11, 10, 9, 8], [4], [7, 3, 5, 5], []]

pytestmark = pytest.mark.skipif(missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code()))


def use_threads(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr("heed.backends.cpu.search.threads_for", lambda _work: threads)


def native_search(
    model: Transformer,
    sources: Sources,
    config: SearchConfig,
    prefixes: Prefixes = None,
    *,
    int8: bool = False,
) -> list[list[Hypothesis]]:
    limits = max_output_lengths([model.config], sources, config)
    results = NativeDecoder(model, int8=int8).search(sources, limits, config, prefixes)
    assert results is not None
    return results


def reference_search(
    model: Transformer, sources: Sources, config: SearchConfig, prefixes: Prefixes = None, *, int8: bool = False
) -> list[list[Hypothesis]]:
    """The search of `heed.decoding`, step by step; int8: over compiled steps."""
    stepper = NativeDecoder(model, int8=True) if int8 else ReferenceStepper(model)
    limits = max_output_lengths([model.config], sources, config)
    start = start_from([stepper], model.config, sources, CPU, TORCH_OPS)
    return run_search(start, limits, config, range(len(sources)), prefixes)


def assert_same(found: Sequence[list[Hypothesis]], expected: Sequence[list[Hypothesis]]) -> None:
    assert [[(h.ids, h.truncated) for h in sentence] for sentence in found] == [
        [(h.ids, h.truncated) for h in sentence] for sentence in expected
    ]
    for sentence, expected_sentence in zip(found, expected, strict=True):
        for hypothesis, reference in zip(sentence, expected_sentence, strict=True):
            assert hypothesis.log_prob == pytest.approx(reference.log_prob, abs=1e-4)
            assert hypothesis.score == pytest.approx(reference.score, abs=1e-4)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("config", [*DESIGNS, SEPARATE_VOCABULARIES, ODD_CONFIG], ids=design_name)
def test_native_search_equals_the_reference_for_every_design(config: ModelConfig, beam: int) -> None:
    model = make(config, CPU, torch.float32)
    search = SearchConfig(beam=beam, nbest=beam, max_length=12)
    assert_same(native_search(model, SOURCES, search), reference_search(model, SOURCES, search))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_native_search_equals_the_reference_for_any_settings(data: st.DataObject) -> None:
    beam = data.draw(st.integers(1, 6), "beam")
    min_length = data.draw(st.integers(0, 3), "min_length")
    config = SearchConfig(
        beam=beam,
        nbest=data.draw(st.integers(1, beam), "nbest"),
        length_penalty=data.draw(st.sampled_from((-1.0, 0.0, 0.6, 2.0)), "length_penalty"),
        stop=data.draw(st.sampled_from(("exact", "first")), "stop"),
        min_length=min_length,
        max_length=data.draw(st.integers(3, 10), "max_length"),
        no_repeat_ngram=data.draw(st.sampled_from((None, 1, 2, 3)), "no_repeat_ngram"),
        tokens_per_batch=data.draw(st.sampled_from((None, 20, 60)), "tokens_per_batch"),
    )
    prefix = st.lists(st.integers(FIRST_WORD, SHAPE["vocab_size"] - 1), max_size=3)
    prefixes = data.draw(st.none() | st.lists(prefix, min_size=len(SOURCES), max_size=len(SOURCES)), "prefixes")
    threads = data.draw(st.integers(1, 3), "threads")
    model = make(ModelConfig.model_validate(SHAPE), CPU, torch.float32)
    with pytest.MonkeyPatch.context() as patch:
        use_threads(patch, threads)
        found = native_search(model, SOURCES, config, prefixes)
    assert_same(found, reference_search(model, SOURCES, config, prefixes))


@pytest.mark.parametrize("beam", [1, 4])
def test_int8_search_equals_the_search_over_int8_steps(beam: int) -> None:
    model = make(ODD_CONFIG, CPU, torch.float32)
    config = SearchConfig(beam=beam, max_length=12)
    found = native_search(model, SOURCES, config, int8=True)
    assert_same(found, reference_search(model, SOURCES, config, int8=True))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_sentences_join_and_leave_without_changing_each_others_results(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_threads(monkeypatch, threads)
    model = make(ODD_CONFIG, CPU, torch.float32)
    sources = [[FIRST_WORD + (7 * i + j) % 100 for j in range(1 + i % 9)] for i in range(40)]
    config = SearchConfig(beam=3, nbest=2, max_length_extra=6)
    few_slots = config.model_copy(update={"tokens_per_batch": 150})
    assert_same(native_search(model, sources, few_slots), native_search(model, sources, config))


def test_several_searches_at_once_do_not_disturb_each_other() -> None:
    model = make(ODD_CONFIG, CPU, torch.float32)
    config, decoder = SearchConfig(max_length=12), NativeDecoder(model)
    limits = max_output_lengths([model.config], SOURCES, config)
    expected = decoder.search(SOURCES, limits, config)
    with ThreadPoolExecutor(4) as pool:
        assert all(
            found == expected for found in pool.map(lambda _: decoder.search(SOURCES, limits, config), range(16))
        )


def test_long_outputs_outgrow_the_first_memory_of_a_slot() -> None:
    model = make(ModelConfig.model_validate({**SHAPE, "max_length": 256}), CPU, torch.float32)
    config = SearchConfig(beam=2, min_length=100, max_length=120)
    assert_same(native_search(model, SOURCES[:2], config), reference_search(model, SOURCES[:2], config))


def test_a_cancelled_sentence_ends_early_and_the_others_are_unchanged() -> None:
    model = make(ODD_CONFIG, CPU, torch.float32)
    config, engine = SearchConfig(min_length=10, max_length=20), Engine(inference_backend([model]))
    steps: list[int] = []
    monitor = SearchMonitor(lambda sentence: sentence == 102 and len(steps) > 3, lambda: steps.append(1))
    ids = range(100, 100 + len(SOURCES))
    found, expected = engine.search(SOURCES, config, ids, monitor=monitor), engine.search(SOURCES, config, ids)
    assert len(found[2][0].ids) < 10 <= len(expected[2][0].ids)
    assert_same([*found[:2], *found[3:]], [*expected[:2], *expected[3:]])
    assert len(steps) > 10


def test_an_exception_between_steps_ends_the_search() -> None:
    model, calls = make(ODD_CONFIG, CPU, torch.float32), []

    def interrupt() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    engine = Engine(inference_backend([model]))
    with pytest.raises(KeyboardInterrupt):
        engine.search(SOURCES, SearchConfig(), range(len(SOURCES)), monitor=SearchMonitor(lambda _: False, interrupt))
    assert len(calls) == 3


def test_a_search_can_run_between_the_steps_of_another() -> None:
    model = make(ODD_CONFIG, CPU, torch.float32)
    engine, config = Engine(inference_backend([model])), SearchConfig(max_length=12)
    inner: list[list[list[Hypothesis]]] = []
    expected = engine.search(SOURCES, config, range(len(SOURCES)))

    def nested() -> None:
        if len(inner) < 2:
            inner.append([])
            inner[-1] = engine.search(SOURCES, config, range(len(SOURCES)))

    monitor = SearchMonitor(lambda _: False, nested)
    assert engine.search(SOURCES, config, range(len(SOURCES)), monitor=monitor) == expected
    assert inner == [expected, expected]


def test_where_steps_are_short_a_monitor_may_be_called_less_often() -> None:
    engine = Engine(inference_backend([make(ODD_CONFIG, CPU, torch.float32)]))
    config, every, some = SearchConfig(min_length=20, max_length=20), list[int](), list[int]()
    for monitor in (
        SearchMonitor(lambda _: False, lambda: every.append(1)),
        SearchMonitor(lambda _: False, lambda: some.append(1), every_step=False),
    ):
        engine.search(SOURCES, config, range(len(SOURCES)), monitor=monitor)
    assert len(every) > 20
    assert 0 < len(some) <= len(every) // 8


def test_the_interpreters_lock_is_released_during_a_search() -> None:
    model = make(ODD_CONFIG, CPU, torch.float32)
    engine, stop, counted = Engine(inference_backend([model])), threading.Event(), [0]

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1

    counter = threading.Thread(target=count)
    sources, progress = [[5] * 30] * 64, []
    monitor = SearchMonitor(lambda _: False, lambda: progress.append(counted[0]))
    counter.start()
    try:
        engine.search(sources, SearchConfig(min_length=60, max_length=60), range(64), monitor=monitor)
    finally:
        stop.set()
        counter.join()
    assert len(set(progress)) > 10


@pytest.mark.parametrize(
    ("sources", "config", "prefixes", "message"),
    [
        ([[5, 203]], {}, None, "src holds id 203"),
        ([[5, -1]], {}, None, "src holds id -1"),
        ([[5]], {}, [[203]], "a prefix has id 203"),
        ([[5]], {}, [[2]], "the prefix of sentence 0 has eos"),
        ([[5]], {}, [[5], [6]], "2 prefixes for 1"),
        ([[5]], {"no_repeat_ngram": 1, "min_length": 300, "max_length": 300}, None, "sentence 0 has log-probability"),
        ([], {}, None, "found 0 sources"),
    ],
)
def test_what_the_compiled_search_refuses_the_stepwise_search_explains(
    sources: Sources, config: dict[str, int], prefixes: Prefixes, message: str
) -> None:
    model, search = make(ODD_CONFIG, CPU, torch.float32), SearchConfig.model_validate(config)
    backend, limits = inference_backend([model]), [search.max_length or 20] * len(sources)
    assert backend.search(sources, limits, search, prefixes, None) is None
    with pytest.raises(InputError, match=message):
        run_search(backend.start(sources), limits, search, range(len(sources)), prefixes)


def test_a_source_longer_than_the_learned_positions_is_refused() -> None:
    model = make(ModelConfig.model_validate({**SHAPE, "positions": "learned"}), CPU, torch.float32)
    with pytest.raises(InputError, match="a sequence of 41 tokens is longer than the 32 learned positions"):
        Engine(inference_backend([model])).search([[5] * 40], SearchConfig(), [0])


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("beam", [1, 4])
def test_native_search_equals_the_reference_on_every_instruction_set(beam: int) -> None:
    model = make(ODD_CONFIG, CPU, torch.float32)
    config = SearchConfig(beam=beam, nbest=beam, max_length=12, no_repeat_ngram=2)
    for int8 in (False, True):
        found = native_search(model, SOURCES, config, int8=int8)
        assert_same(found, reference_search(model, SOURCES, config, int8=int8))


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("threads", [1, 3])
def test_searches_over_long_sources_equal_the_reference(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources around the sizes of panels, and more hypotheses than a register tile has rows."""
    use_threads(monkeypatch, threads)
    model = make(ODD_CONFIG.model_copy(update={"max_length": 80}), CPU, torch.float32)
    sources = [[FIRST_WORD + (7 * i + length) % 9 for i in range(length)] for length in (1, 30, 31, 32, 33, 70)]
    for beam in (1, 3, 10):
        search = SearchConfig(beam=beam, nbest=beam, max_length=8)
        assert_same(native_search(model, sources, search), reference_search(model, sources, search))
