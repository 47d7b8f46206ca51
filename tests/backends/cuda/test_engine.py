"""The GPU engine returns what stepwise search returns. On a CPU it runs in plain torch, without CUDA graphs."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heed import ModelConfig, Transformer
from heed.backends.cuda import engine as captured_engine
from heed.backends.cuda.engine import StaticEngine
from heed.backends.cuda.search import StaticStep
from heed.backends.cuda.slots import SlotShape, fit_memory
from heed.backends.protocol import Hypothesis, SearchMonitor
from heed.backends.select import inference_backend
from heed.backends.select_native import InferenceRequest
from heed.backends.stepping import HeedBackend
from heed.decoding.engine import Engine
from heed.errors import InputError
from heed.search_config import SearchConfig
from tests.backends.decoder_steps import DESIGNS, design_name
from tests.decoding.small_models import small_model
from tests.model.examples import SHAPE, make, sentences
from tests.reference.backends import static_engine, stepwise_engine

CPU = torch.device("cpu")


def static_steps_of(engine: Engine) -> list[StaticStep]:
    return list(cast("StaticEngine", cast("HeedBackend", engine.backend)._engine)._steps.values())


def stepwise_search(model: Transformer, sources: Sequence[list[int]], config: SearchConfig) -> list[list[Hypothesis]]:
    return stepwise_engine(model).search(sources, config, range(len(sources)))


def assert_same_hypotheses(results: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    assert [[hypothesis.ids for hypothesis in hypotheses] for hypotheses in results] == [
        [hypothesis.ids for hypothesis in hypotheses] for hypotheses in expected
    ]
    for hypotheses, expected_hypotheses in zip(results, expected, strict=True):
        for hypothesis, expected_hypothesis in zip(hypotheses, expected_hypotheses, strict=True):
            assert hypothesis.score == pytest.approx(expected_hypothesis.score, abs=1e-5, rel=1e-5)
            assert hypothesis.log_prob == pytest.approx(expected_hypothesis.log_prob, abs=1e-5, rel=1e-5)


@pytest.fixture
def few_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few slots that most sentences wait for one, and each with few positions."""
    monkeypatch.setattr(captured_engine, "_MAX_ROWS", 8)
    monkeypatch.setattr(captured_engine, "_MIN_LENGTH", 2)


@pytest.mark.usefixtures("few_slots")
@pytest.mark.parametrize("config", DESIGNS, ids=design_name)
def test_static_search_equals_stepwise_search_for_every_design(config: ModelConfig, device: torch.device) -> None:
    model = make(config.model_copy(update={"max_length": 64}), CPU, torch.float32).to(device)
    sources = [ids.tolist() for ids in sentences([5, 1, 7, 3, 2, 2, 9], CPU)]
    engine = static_engine(model)
    for search in (SearchConfig(beam=1, max_length=9), SearchConfig(beam=3, nbest=2, max_length=6)):
        results = engine.search(sources, search, range(len(sources)))
        assert_same_hypotheses(results, stepwise_search(model, sources, search))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_static_search_equals_stepwise_search_for_any_settings_and_sources(
    data: st.DataObject, device: torch.device
) -> None:
    """Beams, n-best lists, both stopping rules, lengths, and more sentences than slots."""
    beam = data.draw(st.integers(1, 6), "beam")
    min_length = data.draw(st.integers(0, 3), "min_length")
    config = SearchConfig(
        beam=beam,
        nbest=data.draw(st.integers(1, beam), "nbest"),
        length_penalty=data.draw(st.sampled_from((-1.0, 0.0, 0.6, 1.0, 2.5)), "length_penalty"),
        stop=data.draw(st.sampled_from(("exact", "first")), "stop"),
        min_length=min_length,
        max_length=data.draw(st.one_of(st.none(), st.integers(max(min_length, 1), 12)), "max_length"),
        tokens_per_batch=data.draw(st.sampled_from((None, 20, 200)), "tokens_per_batch"),
    )
    model, _ = small_model(data.draw(st.integers(0, 5), "seed"), device)
    lengths = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=20), "lengths")
    sources = [ids.tolist() for ids in sentences(lengths, CPU)]
    model = model.float()
    assert_same_hypotheses(
        static_engine(model).search(sources, config, range(len(sources))), stepwise_search(model, sources, config)
    )


def test_slots_are_reused_enlarged_and_evicted(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    monkeypatch.setattr(captured_engine, "_MIN_LENGTH", 2)
    monkeypatch.setattr(captured_engine, "_CACHED_SHAPES", 2)
    model, sources = small_model(3, device)
    engine = static_engine(model.float())

    def search(count: int, beam: int, longest: int) -> None:
        config = SearchConfig(beam=beam, max_length=longest)
        assert_same_hypotheses(
            engine.search(sources[:count], config, range(count)), stepwise_search(model, sources[:count], config)
        )

    def shapes() -> list[tuple[int, int, int, int]]:
        slot_shapes = [step.slots.shape for step in static_steps_of(engine)]
        return [(shape.slots, shape.beam, shape.source_length, shape.target_length) for shape in slot_shapes]

    search(2, 2, 3)
    assert shapes() == [(2, 2, 8, 4)]
    search(2, 2, 2)  # fits into the existing slots
    assert shapes() == [(2, 2, 8, 4)]
    search(2, 2, 9)  # does not fit
    assert shapes() == [(2, 2, 8, 16)]
    search(3, 1, 3)
    search(2, 2, 2)
    search(1, 1, 3)  # replaces the least recently used slots
    assert shapes() == [(2, 2, 8, 16), (1, 1, 8, 4)]


def test_the_number_of_slots_is_halved_until_they_fit_the_memory() -> None:
    # 7 GiB for 6 layers of width 512 in float32.
    shape = SlotShape(slots=512, beam=4, source_length=64, target_length=128)
    for memory, slots in ((2**33, 512), (2**32, 256), (2**31, 128), (0, 1)):
        assert fit_memory(shape, 6, 512, torch.float32, memory) == SlotShape(slots, 4, 64, 128)
    assert fit_memory(shape, 6, 512, torch.bfloat16, 2**32) == shape


def test_a_search_uses_changed_weights(device: torch.device) -> None:
    model, sources = small_model(1, device)
    engine, config = static_engine(model.float()), SearchConfig(beam=2, max_length=8)
    before = engine.search(sources, config, range(4))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    after = engine.search(sources, config, range(4))
    assert after != before
    assert_same_hypotheses(after, stepwise_search(model, sources, config))


def test_searches_that_the_static_engine_does_not_support_are_done_stepwise(device: torch.device) -> None:
    model, sources = small_model(1, device)
    model = model.float()
    results: list[list[list[Hypothesis]] | None] = []

    class RecordingEngine(StaticEngine):
        def search(self, *args: Any) -> list[list[Hypothesis]] | None:
            results.append(super().search(*args))
            return results[-1]

    engine, numbers = static_engine(model, RecordingEngine), range(len(sources))
    for config in (SearchConfig(sample=True), SearchConfig(no_repeat_ngram=2), SearchConfig(beam=17)):
        assert engine.search(sources, config, numbers) == stepwise_search(model, sources, config)
    prefixed = [hypotheses[0].ids[0] for hypotheses in engine.search(sources, SearchConfig(), numbers, [[4]] * 4)]
    assert prefixed == [4] * 4
    assert results == [None] * 4
    with model.encoder.register_forward_hook(lambda *_: None):  # type: ignore[union-attr]
        engine.search(sources, SearchConfig(), numbers)
    assert len(results) == 4  # a model with hooks never reaches the static engine
    engine.search(sources, SearchConfig(max_length=4), numbers)
    assert results[4] is not None


@pytest.mark.usefixtures("few_slots")
def test_a_cancelled_sentence_leaves_the_batch_and_the_others_are_unchanged(device: torch.device) -> None:
    model, sources = small_model(3, device)
    config, steps = SearchConfig(beam=2, max_length=8, min_length=6), list[None]()
    monitor = SearchMonitor(lambda number: number == 11 and len(steps) > 2, lambda: steps.append(None), cancel_after=6)
    results = static_engine(model.float()).search(sources, config, range(10, 14), None, monitor)
    expected = stepwise_search(model, sources, config)
    assert [hypothesis.ids for hypothesis in results[1]] == [()]
    assert_same_hypotheses([results[0], *results[2:]], [expected[0], *expected[2:]])
    assert len(steps) > 6


def test_a_search_inside_another_of_the_same_size_changes_neither(device: torch.device) -> None:
    model, sources = small_model(2, device)
    engine, config, inner_results = static_engine(model.float()), SearchConfig(beam=2, max_length=8), list[Any]()

    def interrupt() -> None:
        if len(inner_results) < 2:
            inner_results.append(
                engine.search(sources[::-1], config, range(4), None, SearchMonitor(lambda _: False, lambda: None))
            )

    outer_results = engine.search(sources, config, range(4), None, SearchMonitor(lambda _: False, interrupt))
    assert_same_hypotheses(outer_results, stepwise_search(model, sources, config))
    for results in inner_results:
        assert_same_hypotheses(results, stepwise_search(model, sources[::-1], config))


def test_a_model_that_returns_nan_is_refused_with_the_reason(device: torch.device) -> None:
    model, sources = small_model(1, device)
    model = model.float()
    engine = static_engine(model, StaticEngine)
    with torch.no_grad():
        model.decoder.norm.weight[0] = torch.nan  # type: ignore[union-attr, operator]
    with pytest.raises(InputError, match="or the model returns nan"):
        engine.search(sources, SearchConfig(), range(4))


def test_a_minimum_length_above_the_learned_positions_is_refused(device: torch.device) -> None:
    design = ModelConfig.model_validate({**SHAPE, "positions": "learned", "max_length": 8})
    model = make(design, CPU, torch.float32).to(device)
    engine = static_engine(model, StaticEngine)
    with pytest.raises(InputError, match="sentence 0 is limited to 7 tokens"):
        engine.search([[5, 6]], SearchConfig(min_length=9), [0])


def test_encoding_the_sources_in_several_batches_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    monkeypatch.setattr("heed.backends.cuda.search._ENCODER_TOKENS", 12)
    model, sources = small_model(2, device)
    config = SearchConfig(beam=2, max_length=8)
    assert_same_hypotheses(
        static_engine(model.float()).search(sources, config, range(4)), stepwise_search(model, sources, config)
    )


def test_without_a_gpu_searches_are_stepwise_and_bfloat16_is_refused() -> None:
    model, _ = small_model(1, CPU)
    for precision in ("auto", "float32"):
        assert inference_backend([model], InferenceRequest(precision=precision)).choice.backend in ("cpu", "torch")
    with pytest.raises(InputError, match="precision = 'bfloat16' is not available, use 'float32': "):
        inference_backend([model, model], InferenceRequest(precision="bfloat16"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_bfloat16_scores_on_a_gpu_are_close_to_float32() -> None:
    model, sources = small_model(1, torch.device("cuda"))
    model = model.float()
    backend, config = inference_backend([model]), SearchConfig(beam=3, nbest=3, max_length=12)
    assert backend.choice.backend == "cuda"
    results = Engine(backend).search(sources, config, range(4))
    for hypotheses, expected in zip(results, stepwise_search(model, sources, config), strict=True):
        assert hypotheses[0].score == pytest.approx(expected[0].score, rel=0.05, abs=0.1)
