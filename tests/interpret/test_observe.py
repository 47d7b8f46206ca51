from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heed import ModelConfig, Transformer
from heed.errors import InputError
from heed.interpret.observe import observe
from heed.interpret.parts import attentions, parts, sizes
from heed.model.attention import attention_weights, fused_attention, plain_attention
from heed.model.layout import AttentionPattern
from tests.interpret.numpy_reference import expected
from tests.model.examples import COMBINATIONS, SHAPE, both_sides, every_transformer, make, padded


def rows(config: ModelConfig, device: torch.device) -> dict[str, Any]:
    return {name: padded(side) for name, side in both_sides(config, device).items()}


@cache
def observed(config: ModelConfig, device: torch.device) -> tuple[Transformer, dict[str, Any], dict[str, Tensor]]:
    model, inputs = make(config, device), rows(config, device)
    return model, inputs, observe(model, **inputs)


def hooks(model: Transformer) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


@every_transformer
def test_every_part_has_its_name_and_shape_and_follows_from_the_parts_before_it(
    config: ModelConfig, device: torch.device
) -> None:
    model, inputs, tensors = observed(config, device)
    observation = {name: value.cpu().numpy() for name, value in tensors.items()}
    described = parts(config)
    assert list(observation) == list(described)
    lengths = sizes(config, *(inputs[name].shape[1] if name in inputs else 0 for name in ("src", "tgt_in")))
    assert {name: value.shape[1:] for name, value in observation.items()} == {
        name: part.shape(lengths) for name, part in described.items()
    }
    weights = {name: value.cpu().numpy() for name, value in model.state_dict().items()}
    ids = {{"src": "encoder", "tgt_in": "decoder"}[name]: value.cpu().numpy() for name, value in inputs.items()}
    recomputed = dict(expected(config, weights, observation, ids))
    assert sorted(recomputed) == sorted(described)
    for name, value in recomputed.items():
        np.testing.assert_allclose(observation[name], value, rtol=1e-6, atol=1e-9, err_msg=name)
    for path in attentions(config):
        np.testing.assert_allclose(observation[f"{path}.weights"].sum(-1), 1, atol=1e-12)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_every_part_of_a_classifier_follows_from_the_parts_before_it(norm: str, device: torch.device) -> None:
    config = ModelConfig.model_validate({**SHAPE, "kind": "encoder", "labels": 5, "norm": norm})
    test_every_part_has_its_name_and_shape_and_follows_from_the_parts_before_it(config, device)


@every_transformer
def test_observing_never_changes_the_logits(config: ModelConfig, device: torch.device) -> None:
    model, inputs, observation = observed(config, device)
    with torch.no_grad():
        plain, fused = model(**inputs, attend=plain_attention), model(**inputs)
    assert torch.equal(observation["logits"], plain)
    torch.testing.assert_close(observation["logits"], fused)
    assert torch.equal(observe(model, **inputs, attend=fused_attention, names=["logits"])["logits"], fused)
    for side in ("encoder", "decoder"):
        if f"{side}.sum" in observation:
            assert torch.equal(
                observation[f"{side}.sum"], observation[f"{side}.embedding"] + observation[f"{side}.positions"]
            )
    assert hooks(model) == 0


@pytest.mark.parametrize("norm", ["post", "pre", "sandwich"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_one_forward_pass_equals_step_by_step_decoding(
    kind: str, positions: str, norm: str, device: torch.device
) -> None:
    config = ModelConfig.model_validate({**SHAPE, "kind": kind, "positions": positions, "norm": norm})
    model = make(config, device)
    inputs = {name: side[:1] for name, side in rows(config, device).items()}
    observation = observe(model, **inputs)
    paths = attentions(config)
    stepwise: list[Tensor] = []

    def attend_and_keep(q: Tensor, k: Tensor, v: Tensor, pattern: AttentionPattern, dropout: float) -> Tensor:
        stepwise.append(attention_weights(q, k, pattern))
        return plain_attention(q, k, v, pattern, dropout)

    tgt_in = inputs["tgt_in"][inputs["tgt_in"] != config.pad_id][None]
    start = {"src": inputs["src"]} if config.has_encoder else {"rows": 1}
    cache = model.start(**start, attend=attend_and_keep)
    for step in range(tgt_in.shape[1]):
        logits, cache = model.step(tgt_in[:, step : step + 1], cache, attend=attend_and_keep)
        torch.testing.assert_close(logits[:, 0], observation["logits"][:, step])
    of_decoder = [path for path in paths if path.startswith("decoder")]
    encoder, steps = stepwise[: len(paths) - len(of_decoder)], stepwise[len(paths) - len(of_decoder) :]
    for path, weights in zip(paths, encoder, strict=False):
        torch.testing.assert_close(weights, observation[f"{path}.weights"])
    for number, weights in enumerate(steps):
        step, path = number // len(of_decoder), of_decoder[number % len(of_decoder)]
        full_weights = observation[f"{path}.weights"][:, :, step : step + 1]
        torch.testing.assert_close(weights, full_weights if path.endswith("cross") else full_weights[..., : step + 1])


def test_only_requested_parts_are_recorded_in_order_of_computation(device: torch.device) -> None:
    config = COMBINATIONS[0]
    model = make(config, device)
    names = ["logits", "decoder.2.cross.heads", "encoder.1.self.query"]
    assert list(observe(model, **rows(config, device), names=names)) == names[::-1]


def test_nothing_stays_on_the_model_when_a_pass_fails(device: torch.device) -> None:
    model = make(COMBINATIONS[0], device)

    def fail(q: Tensor, _k: Tensor, _v: Tensor, _sight: AttentionPattern, _dropout: float) -> Tensor:
        assert hooks(model) > 0
        raise RuntimeError(str(q.shape))

    with pytest.raises(RuntimeError):
        observe(model, **rows(COMBINATIONS[0], device), attend=fail)
    assert hooks(model) == 0


def test_unknown_parts_and_training_mode_are_refused(device: torch.device) -> None:
    model = make(COMBINATIONS[0], device)
    inputs = rows(COMBINATIONS[0], device)
    with pytest.raises(InputError, match=r"no part 'encoder.0.self.query': did you mean 'encoder.\d.self.query'\?"):
        observe(model, **inputs, names=["encoder.0.self.query"])
    with pytest.raises(InputError, match=r"call model.eval\(\) first"):
        observe(model.train(), **inputs)
