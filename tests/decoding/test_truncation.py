import pytest
import torch

from heed import SearchConfig, Transformer
from heed.backends.base import Hypothesis, SearchMonitor
from heed.backends.cuda.engine import StaticEngine
from heed.decoding.engine import Engine
from tests.decoding.small_models import forced_log_probs, small_model
from tests.reference.backends import static_engine, stepwise_engine

KINDS = {
    "greedy": SearchConfig(beam=1),
    "beam": SearchConfig(beam=3, nbest=3),
    "sample": SearchConfig(sample=True, nbest=2),
    "no repeat": SearchConfig(beam=2, no_repeat_ngram=2),
}


def engine_of(name: str, model: Transformer) -> Engine:
    return stepwise_engine(model) if name == "stepwise" else static_engine(model, StaticEngine)


def would_go_on(model: Transformer, source: list[int], one: Hypothesis) -> bool:
    """What a forced pass without a cache says comes next, other than padding and the first token."""
    following = forced_log_probs(model, source, one.ids)[-1]
    following[[0, 1]] = -torch.inf
    return int(following.argmax()) != 2


@pytest.mark.parametrize("engine", ["stepwise", "captured"])
@pytest.mark.parametrize("kind", ["greedy", "beam", "sample"])
def test_truncated_marks_exactly_the_hypotheses_that_the_length_limit_ended(
    engine: str, kind: str, device: torch.device
) -> None:
    marked = by_themselves = 0
    for seed in range(2):
        model, sources = small_model(seed, device)
        for limit in (1, 2, 3, 5):
            config = KINDS[kind].model_copy(update={"max_length": limit})
            for source, found in zip(sources, engine_of(engine, model).search(sources, config, range(4)), strict=True):
                for one in found:
                    expected = len(one.ids) == limit and would_go_on(model, source, one)
                    assert one.truncated == expected
                    marked += expected
                    by_themselves += len(one.ids) == limit and not expected
    assert marked > 10
    assert by_themselves > 0  # as long as may be, and whole


def test_constraints_of_the_search_never_mark_a_hypothesis_truncated(device: torch.device) -> None:
    """Where no token but the end is allowed by `no_repeat_ngram`, the hypothesis has ended by itself."""
    model, sources = small_model(3, device)
    for limit in (2, 4, 6):
        config = KINDS["no repeat"].model_copy(update={"max_length": limit})
        for found in engine_of("stepwise", model).search(sources, config, range(4)):
            assert all(len(one.ids) == limit for one in found if one.truncated)


def test_detecting_truncation_takes_no_extra_step(device: torch.device) -> None:
    model, sources = small_model(1, device)
    steps = 0

    def before_step() -> None:
        nonlocal steps
        steps += 1

    config = SearchConfig(beam=1, max_length=2)
    monitor = SearchMonitor(lambda _number: False, before_step)
    found = engine_of("stepwise", model).search(sources, config, range(4), monitor=monitor)
    assert any(one.truncated for (one,) in found)
    assert steps == 3  # two tokens and the end: no step is taken to find out


def test_running_out_of_learned_positions_truncates(device: torch.device) -> None:
    torch.manual_seed(0)
    model, sources = small_model(0, device)
    config = model.config.model_copy(update={"positions": "learned", "max_length": 9})
    model = Transformer(config).eval().to(device)
    found = engine_of("stepwise", model).search(sources, SearchConfig(beam=1), range(4))
    for source, (one,) in zip(sources, found, strict=True):
        assert one.truncated == (len(one.ids) == 8 and would_go_on(model, source, one))
