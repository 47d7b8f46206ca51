import pytest
import torch

from heed import SearchConfig, Transformer
from heed.backends.cuda.engine import StaticEngine
from heed.backends.protocol import Hypothesis, SearchMonitor
from heed.decoding.engine import Engine
from tests.decoding.small_models import forced_log_probs, small_model
from tests.reference.backends import static_engine, stepwise_engine

SEARCHES = {
    "greedy": SearchConfig(beam=1),
    "beam": SearchConfig(beam=3, nbest=3),
    "sample": SearchConfig(sample=True, nbest=2),
    "no repeat": SearchConfig(beam=2, no_repeat_ngram=2),
}


def engine_of(name: str, model: Transformer) -> Engine:
    return stepwise_engine(model) if name == "stepwise" else static_engine(model, StaticEngine)


def would_continue(model: Transformer, source: list[int], hypothesis: Hypothesis) -> bool:
    """Whether the most probable next token, padding and BOS excluded, is not EOS; computed without a cache."""
    next_log_probs = forced_log_probs(model, source, hypothesis.ids)[-1]
    next_log_probs[[0, 1]] = -torch.inf
    return int(next_log_probs.argmax()) != 2


@pytest.mark.parametrize("engine", ["stepwise", "captured"])
@pytest.mark.parametrize("kind", ["greedy", "beam", "sample"])
def test_truncated_marks_exactly_the_hypotheses_that_the_length_limit_ended(
    engine: str, kind: str, device: torch.device
) -> None:
    truncated = finished_at_limit = 0
    for seed in range(2):
        model, sources = small_model(seed, device)
        for limit in (1, 2, 3, 5):
            config = SEARCHES[kind].model_copy(update={"max_length": limit})
            for source, hypotheses in zip(
                sources, engine_of(engine, model).search(sources, config, range(4)), strict=True
            ):
                for hypothesis in hypotheses:
                    expected = len(hypothesis.ids) == limit and would_continue(model, source, hypothesis)
                    assert hypothesis.truncated == expected
                    truncated += expected
                    finished_at_limit += len(hypothesis.ids) == limit and not expected
    assert truncated > 10
    assert finished_at_limit > 0  # some finish exactly at the limit


def test_constraints_of_the_search_never_mark_a_hypothesis_truncated(device: torch.device) -> None:
    """If `no_repeat_ngram` allows only EOS, the hypothesis is finished, not truncated."""
    model, sources = small_model(3, device)
    for limit in (2, 4, 6):
        config = SEARCHES["no repeat"].model_copy(update={"max_length": limit})
        for hypotheses in engine_of("stepwise", model).search(sources, config, range(4)):
            assert all(len(hypothesis.ids) == limit for hypothesis in hypotheses if hypothesis.truncated)


def test_detecting_truncation_takes_no_extra_step(device: torch.device) -> None:
    model, sources = small_model(1, device)
    steps = 0

    def before_step() -> None:
        nonlocal steps
        steps += 1

    config = SearchConfig(beam=1, max_length=2)
    monitor = SearchMonitor(lambda _number: False, before_step)
    results = engine_of("stepwise", model).search(sources, config, range(4), monitor=monitor)
    assert any(hypothesis.truncated for (hypothesis,) in results)
    assert steps == 3  # two tokens and EOS


def test_running_out_of_learned_positions_truncates(device: torch.device) -> None:
    torch.manual_seed(0)
    model, sources = small_model(0, device)
    config = model.config.model_copy(update={"positions": "learned", "max_length": 9})
    model = Transformer(config).eval().to(device)
    results = engine_of("stepwise", model).search(sources, SearchConfig(beam=1), range(4))
    for source, (hypothesis,) in zip(sources, results, strict=True):
        assert hypothesis.truncated == (len(hypothesis.ids) == 8 and would_continue(model, source, hypothesis))
