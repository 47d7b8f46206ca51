"""Models without one of their parts, for comparison, equal whole models with weights that undo the part."""

import math
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import nn

from heed import ModelConfig, Transformer
from heed.errors import ConfigError, InputError
from heed.model.attention import MultiHeadAttention
from heed.model.layers import EncoderLayer, FeedForward, Residual
from tests.model.examples import SHAPE, both_sides, make, padded

CPU = torch.device("cpu")


def unscale(module: nn.Module) -> None:
    if isinstance(module, MultiHeadAttention):
        for weight in module.query.parameters():
            weight.mul_(math.sqrt(module.split[1]))


def linearize(module: nn.Module) -> None:
    """Shift the activation's inputs to where max(0, x) = x, and its outputs back."""
    if isinstance(module, FeedForward):
        module.widen.bias.add_(100)
        module.narrow.bias.sub_(100 * module.narrow.weight.sum(1))


def silence(module: nn.Module) -> None:
    if isinstance(module, FeedForward):
        module.narrow.weight.zero_()
        module.narrow.bias.zero_()


@pytest.mark.parametrize(
    ("without", "undo"), [("scaling", unscale), ("activation", linearize), ("feed-forward", silence)]
)
def test_a_model_without_a_part_equals_one_whose_weights_undo_it(
    without: str, undo: Callable[[nn.Module], None]
) -> None:
    settings: dict[str, Any] = {**SHAPE, "norm": "pre"}
    model = make(ModelConfig.model_validate({**settings, "without": without}), CPU)
    whole = Transformer(ModelConfig.model_validate(settings)).to(torch.float64).eval()
    missing = whole.load_state_dict(model.state_dict(), strict=False)
    assert not missing.unexpected_keys
    assert all("feed_forward" in name for name in missing.missing_keys)
    batch = {name: padded(rows) for name, rows in both_sides(model.config, CPU).items()}
    before = whole(**batch)
    with torch.no_grad():
        whole.apply(undo)
    assert not torch.allclose(model(**batch), before, atol=1e-3)
    torch.testing.assert_close(model(**batch), whole(**batch))


@pytest.mark.parametrize("norm", ["post", "pre", "sandwich"])
def test_without_residuals_a_sub_layers_output_does_not_contain_its_input(norm: str) -> None:
    config = ModelConfig.model_validate({**SHAPE, "norm": norm, "without": "residuals"})
    around = Residual(config).to(torch.float64).eval()
    x, y = (torch.randn(5, SHAPE["d_model"], dtype=torch.float64) for _ in range(2))
    output = around(x, lambda _: y)
    assert torch.equal(output, around(x + 1, lambda _: y))
    expected = y if norm == "pre" else nn.functional.layer_norm(y, y.shape[-1:], eps=config.norm_eps)
    torch.testing.assert_close(output, expected)


def test_without_feed_forward_there_are_no_weights_of_it() -> None:
    model = Transformer(ModelConfig.model_validate({**SHAPE, "without": "feed-forward"}))
    assert not any("feed_forward" in name for name, _ in model.named_parameters())
    assert isinstance(cast("nn.Module", model.encoder).get_submodule("layers.0"), EncoderLayer)


@pytest.mark.parametrize("without", [None, "scaling"])
def test_a_smaller_d_k_equals_whole_heads_with_rows_of_zeros_and_its_own_scale(without: str | None) -> None:
    settings: dict[str, Any] = {**SHAPE, "without": without}
    narrow = make(ModelConfig.model_validate({**settings, "d_k": 3}), CPU)
    whole = Transformer(ModelConfig.model_validate(settings)).to(torch.float64).eval()
    weights = whole.state_dict()
    for name, weight in narrow.state_dict().items():
        if weight.shape == weights[name].shape:
            weights[name] = weight
            continue
        padded_weight = torch.zeros_like(weights[name]).unflatten(0, (SHAPE["heads"], -1))
        padded_weight[:, :3] = weight.unflatten(0, (SHAPE["heads"], -1))
        scale = math.sqrt(8 / 3) if ".query." in name and without is None else 1.0
        weights[name] = padded_weight.flatten(0, 1) * scale
    whole.load_state_dict(weights)
    batch = {name: padded(rows) for name, rows in both_sides(narrow.config, CPU).items()}
    torch.testing.assert_close(narrow(**batch), whole(**batch))


def test_d_k_is_at_most_the_width_of_a_head() -> None:
    assert ModelConfig.model_validate({**SHAPE, "d_k": 8}).comparison_only is None
    assert ModelConfig.model_validate({**SHAPE, "d_k": 4}).comparison_only == "d_k = 4"
    with pytest.raises(ConfigError, match=r"d_k = 9 is more than d_model / heads = 8"):
        ModelConfig.model_validate({**SHAPE, "d_k": 9})
    with pytest.raises(ConfigError, match=r"d_k = 4 is not supported with positions = 'rotary'"):
        ModelConfig.model_validate({**SHAPE, "d_k": 4, "positions": "rotary"})


def test_what_relies_on_the_structure_of_layers_refuses() -> None:
    model = Transformer(ModelConfig.model_validate({**SHAPE, "without": "residuals"}))
    with pytest.raises(InputError, match=r"models with without = 'residuals', which exist for comparison"):
        model.attention_stacks()
    with pytest.raises(ConfigError, match=r"without = 'scaling' needs mixer = 'attention', found 'gru'"):
        ModelConfig.model_validate({**SHAPE, "without": "scaling", "mixer": "gru"})
