import copy
from typing import Any, cast

import pytest
import torch
from torch import nn

from heed import ModelConfig, SearchConfig
from heed.backends.select import InferenceRequest, _make_stepper, inference_backend
from heed.backends.torch.linear import int8_linear
from heed.decoding.engine import Engine
from tests.model.examples import COMBINATIONS, make, padded, sentences
from tests.reference.backends import stepwise_engine

CPU = torch.device("cpu")
DESIGNS = [config for config in COMBINATIONS if config.kind == "encoder-decoder"]


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_in_integers_is_near_the_product(has_bias: bool) -> None:
    plain = nn.Linear(64, 48, bias=has_bias)
    with torch.no_grad():
        plain.weight[5] *= 1000  # a scale for each row: one large row must not spoil the others
        plain.weight[7] = 0
    x = torch.randn(3, 10, 64)
    with torch.no_grad():
        wanted, found = plain(x), int8_linear(reduce_range=True)(plain.weight, plain.bias)(x)
    rows = (found - wanted).norm(dim=(0, 1)) / wanted.norm(dim=(0, 1)).clamp(min=1e-6)
    assert rows.max() < 0.03
    assert found.shape == wanted.shape


@pytest.mark.parametrize("by", ["our-own-code", "torch"])
@pytest.mark.parametrize("config", DESIGNS, ids=lambda one: f"{one.norm}-{one.positions}-{one.activation}")
@torch.no_grad()
def test_every_design_steps_in_integers_near_where_it_steps_without(
    config: ModelConfig, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "torch":
        monkeypatch.setattr("heed.backends.select.has_int8", lambda: False)
    model = make(config, CPU, torch.float32)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    src = padded(sentences([5, 2], CPU))
    found = []
    for dtype in ("float32", "int8"):
        decoder = cast("Any", _make_stepper(model, dtype))
        state, logits = decoder.start(src), []
        for ids in ([1, 1], [4, 5], [6, 7]):
            out, state = decoder.step(torch.tensor(ids), state)
            logits.append(out)
        found.append(torch.stack(logits))
    plain, integers = found
    assert 0 < (plain - integers).norm() / plain.norm() < 0.1
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert all(isinstance(part, nn.Linear) for name, part in model.named_modules() if name.endswith("query"))


def test_a_search_in_int8_ends_and_scores_near_ours() -> None:
    model = make(DESIGNS[0], CPU, torch.float32)
    sources, config = [[5, 6, 7], [8, 9]], SearchConfig(beam=3, max_length=8)
    ours = stepwise_engine(model).search(sources, config, [0, 1])
    backend = inference_backend([model], InferenceRequest("heed-int8"))
    assert backend.choice.dtype == "int8"
    for one, other in zip(ours, Engine(backend).search(sources, config, [0, 1]), strict=True):
        assert abs(one[0].score - other[0].score) < 0.1
        assert one[0].score != other[0].score


def test_a_model_whose_weights_change_is_quantised_anew() -> None:
    model = make(DESIGNS[0], CPU, torch.float32)
    engine, config = (
        Engine(inference_backend([model], InferenceRequest("heed-int8"))),
        SearchConfig(beam=1, max_length=8),
    )
    before = engine.search([[5, 6, 7]], config, [0])[0][0].log_prob
    with torch.no_grad():
        model.vocabulary.embedding.weight.mul_(1.5)
    assert engine.search([[5, 6, 7]], config, [0])[0][0].log_prob != before


def test_one_model_steps_in_int8_and_in_float32_side_by_side_whatever_came_first() -> None:
    model = make(DESIGNS[0], CPU, torch.float32).train()
    sources, config = [[5, 6, 7]], SearchConfig(beam=1, max_length=8)
    int8 = Engine(inference_backend([model], InferenceRequest("heed-int8")))  # while it is trained: by the reference
    model.eval()
    exact = stepwise_engine(model)
    steppers = [engine.backend._stepper(model) for engine in (int8, exact, int8, exact)]  # type: ignore[attr-defined]
    assert steppers[:2] == steppers[2:]
    assert steppers[0] is not steppers[1]
    scores = [engine.search(sources, config, [0])[0][0].score for engine in (int8, exact)]
    assert scores[0] != scores[1]
    assert scores[1] == stepwise_engine(copy.deepcopy(model)).search(sources, config, [0])[0][0].score
