"""The engine for a GPU finds what our plain searches find. On a CPU it runs in plain torch, and nothing is captured."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heed import ModelConfig, Transformer
from heed.backends.base import Hypothesis, SearchMonitor
from heed.backends.cuda import engine as captured_engine
from heed.backends.cuda.engine import StaticEngine
from heed.backends.cuda.search import StaticStep
from heed.backends.cuda.slots import SlotShape, fit_memory
from heed.backends.select import InferenceRequest, inference_backend
from heed.backends.stepping import HeedBackend
from heed.config import SearchConfig
from heed.decoding.engine import Engine
from heed.errors import InputError
from tests.decoding.small_models import small_model
from tests.model.examples import COMBINATIONS, SHAPE, make, sentences
from tests.reference.backends import static_engine, stepwise_engine

CPU = torch.device("cpu")
DESIGNS = [config for config in COMBINATIONS if config.kind == "encoder-decoder"]


def static_steps_of(engine: Engine) -> list[StaticStep]:
    return list(cast("StaticEngine", cast("HeedBackend", engine.backend)._engine)._steps.values())


def plainly(model: Transformer, sources: Sequence[list[int]], config: SearchConfig) -> list[list[Hypothesis]]:
    return stepwise_engine(model).search(sources, config, range(len(sources)))


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    assert [[each.ids for each in one] for one in found] == [[each.ids for each in one] for one in expected]
    for one, other in zip(found, expected, strict=True):
        for each, wanted in zip(one, other, strict=True):
            assert each.score == pytest.approx(wanted.score, abs=1e-5, rel=1e-5)
            assert each.log_prob == pytest.approx(wanted.log_prob, abs=1e-5, rel=1e-5)


@pytest.fixture
def few_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few that most sentences must wait, and room for few tokens."""
    monkeypatch.setattr(captured_engine, "_MAX_ROWS", 8)
    monkeypatch.setattr(captured_engine, "_MIN_LENGTH", 2)


@pytest.mark.usefixtures("few_slots")
@pytest.mark.parametrize("config", DESIGNS, ids=lambda one: f"{one.norm}-{one.positions}-{one.activation}")
def test_every_design_searches_as_stepwise_does(config: ModelConfig, device: torch.device) -> None:
    model = make(config.model_copy(update={"max_length": 64}), CPU, torch.float32).to(device)
    sources = [ids.tolist() for ids in sentences([5, 1, 7, 3, 2, 2, 9], CPU)]
    engine = static_engine(model)
    for search in (SearchConfig(beam=1, max_length=9), SearchConfig(beam=3, nbest=2, max_length=6)):
        found = engine.search(sources, search, range(len(sources)))
        assert_same(found, plainly(model, sources, search))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_settings_and_sources_give_what_stepwise_gives(data: st.DataObject, device: torch.device) -> None:
    """Beams, n-best lists, both ways to stop, lengths, and more sentences than there is room for."""
    beam = data.draw(st.integers(1, 6), "beam")
    least = data.draw(st.integers(0, 3), "min_length")
    config = SearchConfig(
        beam=beam,
        nbest=data.draw(st.integers(1, beam), "nbest"),
        length_penalty=data.draw(st.sampled_from((-1.0, 0.0, 0.6, 1.0, 2.5)), "length_penalty"),
        stop=data.draw(st.sampled_from(("exact", "first")), "stop"),
        min_length=least,
        max_length=data.draw(st.one_of(st.none(), st.integers(max(least, 1), 12)), "max_length"),
        tokens_per_batch=data.draw(st.sampled_from((None, 20, 200)), "tokens_per_batch"),
    )
    model, _ = small_model(data.draw(st.integers(0, 5), "seed"), device)
    lengths = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=20), "lengths")
    sources = [ids.tolist() for ids in sentences(lengths, CPU)]
    model = model.float()
    assert_same(static_engine(model).search(sources, config, range(len(sources))), plainly(model, sources, config))


def test_slots_are_kept_grow_and_are_given_up(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    monkeypatch.setattr(captured_engine, "_MIN_LENGTH", 2)
    monkeypatch.setattr(captured_engine, "_CACHED_SHAPES", 2)
    model, sources = small_model(3, device)
    engine = static_engine(model.float())

    def search(count: int, beam: int, longest: int) -> None:
        config = SearchConfig(beam=beam, max_length=longest)
        assert_same(engine.search(sources[:count], config, range(count)), plainly(model, sources[:count], config))

    def shapes() -> list[tuple[int, int, int, int]]:
        every = [step.slots.shape for step in static_steps_of(engine)]
        return [(shape.slots, shape.beam, shape.source_length, shape.target_length) for shape in every]

    search(2, 2, 3)
    assert shapes() == [(2, 2, 8, 4)]
    search(2, 2, 2)  # fits into what is there
    assert shapes() == [(2, 2, 8, 4)]
    search(2, 2, 9)  # does not
    assert shapes() == [(2, 2, 8, 16)]
    search(3, 1, 3)
    search(2, 2, 2)
    search(1, 1, 3)  # in the place of what was used longest ago
    assert shapes() == [(2, 2, 8, 16), (1, 1, 8, 4)]


def test_where_memory_is_short_there_are_fewer_slots() -> None:
    shape = SlotShape(
        slots=512, beam=4, source_length=64, target_length=128
    )  # 7 GiB for 6 layers of width 512, each number 4 bytes
    for memory, slots in ((2**33, 512), (2**32, 256), (2**31, 128), (0, 1)):
        assert fit_memory(shape, 6, 512, torch.float32, memory) == SlotShape(slots, 4, 64, 128)
    assert fit_memory(shape, 6, 512, torch.bfloat16, 2**32) == shape


def test_weights_that_change_are_noticed(device: torch.device) -> None:
    model, sources = small_model(1, device)
    engine, config = static_engine(model.float()), SearchConfig(beam=2, max_length=8)
    before = engine.search(sources, config, range(4))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    after = engine.search(sources, config, range(4))
    assert after != before
    assert_same(after, plainly(model, sources, config))


def test_what_it_cannot_do_is_searched_step_by_step(device: torch.device) -> None:
    model, sources = small_model(1, device)
    model = model.float()
    found: list[list[list[Hypothesis]] | None] = []

    class Seen(StaticEngine):
        def search(self, *asked: Any) -> list[list[Hypothesis]] | None:
            found.append(super().search(*asked))
            return found[-1]

    engine, numbers = static_engine(model, Seen), range(len(sources))
    for config in (SearchConfig(sample=True), SearchConfig(no_repeat_ngram=2), SearchConfig(beam=17)):
        assert engine.search(sources, config, numbers) == plainly(model, sources, config)
    assert found == [None] * 3
    prefixed = [one[0].ids[0] for one in engine.search(sources, SearchConfig(), numbers, [[4]] * 4)]
    assert prefixed == [4] * 4
    with model.encoder.register_forward_hook(lambda *_: None):  # type: ignore[union-attr]
        engine.search(sources, SearchConfig(), numbers)
    assert len(found) == 3  # neither prefixes nor hooks come so far
    engine.search(sources, SearchConfig(max_length=4), numbers)
    assert found[3] is not None


@pytest.mark.usefixtures("few_slots")
def test_who_is_not_waited_for_leaves_and_the_others_find_the_same(device: torch.device) -> None:
    model, sources = small_model(3, device)
    config, steps = SearchConfig(beam=2, max_length=8, min_length=6), list[None]()
    monitor = SearchMonitor(lambda number: number == 11 and len(steps) > 2, lambda: steps.append(None), cancel_after=6)
    found = static_engine(model.float()).search(sources, config, range(10, 14), None, monitor)
    expected = plainly(model, sources, config)
    assert [one.ids for one in found[1]] == [()]
    assert_same([found[0], *found[2:]], [expected[0], *expected[2:]])
    assert len(steps) > 6


def test_a_search_may_be_interrupted_by_another_of_the_same_size(device: torch.device) -> None:
    model, sources = small_model(2, device)
    engine, config, inner = static_engine(model.float()), SearchConfig(beam=2, max_length=8), list[Any]()

    def interrupt() -> None:
        if len(inner) < 2:
            inner.append(
                engine.search(sources[::-1], config, range(4), None, SearchMonitor(lambda _: False, lambda: None))
            )

    outer = engine.search(sources, config, range(4), None, SearchMonitor(lambda _: False, interrupt))
    assert_same(outer, plainly(model, sources, config))
    for one in inner:
        assert_same(one, plainly(model, sources[::-1], config))


def test_who_finds_nothing_is_told_why(device: torch.device) -> None:
    model, sources = small_model(1, device)
    model = model.float()
    engine = static_engine(model, StaticEngine)
    with torch.no_grad():
        model.decoder.norm.weight[0] = torch.nan  # type: ignore[union-attr, operator]
    with pytest.raises(InputError, match="or the model returns nan"):
        engine.search(sources, SearchConfig(), range(4))


def test_lengths_that_cannot_be_kept_are_refused_as_ever(device: torch.device) -> None:
    design = ModelConfig.model_validate({**SHAPE, "positions": "learned", "max_length": 8})
    model = make(design, CPU, torch.float32).to(device)
    engine = static_engine(model, StaticEngine)
    with pytest.raises(InputError, match="sentence 0 is limited to 7 tokens"):
        engine.search([[5, 6]], SearchConfig(min_length=9), [0])


def test_many_sources_are_encoded_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    monkeypatch.setattr("heed.backends.cuda.search._ENCODER_TOKENS", 12)
    model, sources = small_model(2, device)
    config = SearchConfig(beam=2, max_length=8)
    assert_same(static_engine(model.float()).search(sources, config, range(4)), plainly(model, sources, config))


def test_without_a_gpu_searches_go_step_by_step_and_half_precision_is_refused() -> None:
    model, _ = small_model(1, CPU)
    for precision in ("auto", "float32"):
        assert inference_backend([model], InferenceRequest(precision=precision)).choice.backend in ("cpu", "torch")
    with pytest.raises(InputError, match="precision = 'bfloat16' is not available, use 'float32': "):
        inference_backend([model, model], InferenceRequest(precision="bfloat16"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_half_precision_loses_little() -> None:
    model, sources = small_model(1, torch.device("cuda"))
    model = model.float()
    backend, config = inference_backend([model]), SearchConfig(beam=3, nbest=3, max_length=12)
    assert backend.choice.backend == "cuda"
    searched = Engine(backend).search(sources, config, range(4))
    for found, exact in zip(searched, plainly(model, sources, config), strict=True):
        assert found[0].score == pytest.approx(exact[0].score, rel=0.05, abs=0.1)
