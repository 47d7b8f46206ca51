import copy
from typing import Any, cast

import pytest
import torch
from torch import nn

from heed import ModelConfig, SearchConfig
from heed.backends.select import _make_stepper, inference_backend
from heed.backends.select_native import InferenceRequest
from heed.backends.torch.linear import int8_linear
from heed.decoding.engine import Engine
from tests.backends.decoder_steps import DESIGNS, design_name
from tests.model.examples import make, padded, sentences
from tests.reference.backends import stepwise_engine

CPU = torch.device("cpu")


@pytest.mark.parametrize("has_bias", [False, True])
def test_an_int8_linear_layer_is_close_to_the_float32_one(has_bias: bool) -> None:
    plain = nn.Linear(64, 48, bias=has_bias)
    with torch.no_grad():
        plain.weight[5] *= 1000  # each row has its own scale: a large row must not make the others less exact
        plain.weight[7] = 0
    x = torch.randn(3, 10, 64)
    with torch.no_grad():
        expected, output = plain(x), int8_linear(reduce_range=True)(plain.weight, plain.bias)(x)
    errors = (output - expected).norm(dim=(0, 1)) / expected.norm(dim=(0, 1)).clamp(min=1e-6)
    assert errors.max() < 0.03
    assert output.shape == expected.shape


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("config", DESIGNS, ids=design_name)
@torch.no_grad()
def test_int8_decoder_steps_are_close_to_float32_ones_for_every_design(
    config: ModelConfig, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "torch":
        monkeypatch.setattr("heed.backends.select.missing_for_compiled_code", lambda: "no library")
    model = make(config, CPU, torch.float32)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    src = padded(sentences([5, 2], CPU))
    logits_by_dtype = []
    for dtype in ("float32", "int8"):
        decoder = cast("Any", _make_stepper(model, dtype))
        state, step_logits = decoder.start(src), []
        for ids in ([1, 1], [4, 5], [6, 7]):
            logits, state = decoder.step(torch.tensor(ids), state)
            step_logits.append(logits)
        logits_by_dtype.append(torch.stack(step_logits))
    float32, int8 = logits_by_dtype
    assert 0 < (float32 - int8).norm() / float32.norm() < 0.1
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert all(isinstance(module, nn.Linear) for name, module in model.named_modules() if name.endswith("query"))


def test_an_int8_search_scores_close_to_float32() -> None:
    model = make(DESIGNS[0], CPU, torch.float32)
    sources, config = [[5, 6, 7], [8, 9]], SearchConfig(beam=3, max_length=8)
    float32 = stepwise_engine(model).search(sources, config, [0, 1])
    backend = inference_backend([model], InferenceRequest("heed-int8"))
    assert backend.choice.dtype == "int8"
    for hypotheses, int8_hypotheses in zip(float32, Engine(backend).search(sources, config, [0, 1]), strict=True):
        assert abs(hypotheses[0].score - int8_hypotheses[0].score) < 0.1
        assert hypotheses[0].score != int8_hypotheses[0].score


def test_a_model_whose_weights_changed_is_quantised_again() -> None:
    model = make(DESIGNS[0], CPU, torch.float32)
    engine, config = (
        Engine(inference_backend([model], InferenceRequest("heed-int8"))),
        SearchConfig(beam=1, max_length=8),
    )
    before = engine.search([[5, 6, 7]], config, [0])[0][0].log_prob
    with torch.no_grad():
        model.vocabulary.embedding.weight.mul_(1.5)
    assert engine.search([[5, 6, 7]], config, [0])[0][0].log_prob != before


def test_one_model_can_decode_in_int8_and_in_float32_alternately() -> None:
    model = make(DESIGNS[0], CPU, torch.float32).train()
    sources, config = [[5, 6, 7]], SearchConfig(beam=1, max_length=8)
    int8 = Engine(inference_backend([model], InferenceRequest("heed-int8")))  # in training mode: the reference decoder
    model.eval()
    float32 = stepwise_engine(model)
    steppers = [engine.backend._stepper(model) for engine in (int8, float32, int8, float32)]  # type: ignore[attr-defined]
    assert steppers[:2] == steppers[2:]
    assert steppers[0] is not steppers[1]
    scores = [engine.search(sources, config, [0])[0][0].score for engine in (int8, float32)]
    assert scores[0] != scores[1]
    assert scores[1] == stepwise_engine(copy.deepcopy(model)).search(sources, config, [0])[0][0].score
