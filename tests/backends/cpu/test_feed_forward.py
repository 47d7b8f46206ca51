"""The feed-forward network for training in compiled code equals the model's, forward and backward, with its dropout."""

import pytest
import torch
from torch import nn

from heed import ModelConfig
from heed.backends.cpu import feed_forward
from heed.backends.cpu import linear as compiled_linear
from heed.backends.cpu.dropout import DropoutStruct, apply_dropout
from heed.backends.cpu.feed_forward import NativeFeedForward, use_native_feed_forward
from heed.backends.cpu.library import missing_for_compiled_code
from heed.backends.cpu.linear import matmul
from heed.model.layers import FeedForward

pytestmark = pytest.mark.skipif(missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code()))

SEED, RATE = 77, 0.3


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("size", [(1, 1, 1), (7, 3, 5), (130, 600, 100), (70, 300, 64)], ids=str)
@pytest.mark.parametrize("rate", [0.0, RATE])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_relu_dropout_and_their_gradient_follow_a_matmul(
    size: tuple[int, int, int], rate: float, is_transposed: bool
) -> None:
    rows, depth, columns = size
    a, b, bias, gate = (torch.randn(shape) for shape in ((rows, depth), (depth, columns), columns, (rows, columns)))
    a = a.t().contiguous().t() if is_transposed else a
    dropout = DropoutStruct.of(rate, SEED)
    expected = apply_dropout((a @ b + bias).relu(), dropout)
    torch.testing.assert_close(matmul(a, b, bias, relu=dropout), expected, atol=2e-4, rtol=1e-5)
    gated = torch.where(gate > 0, 2.5 * (a @ b), 0.0)
    torch.testing.assert_close(matmul(a, b, gate=gate, gate_scale=2.5), gated, atol=5e-4, rtol=1e-5)


class KnownDropout(nn.Module):
    """Dropout in compiled code with the seed of this test."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = apply_dropout(torch.ones_like(x), DropoutStruct.of(RATE, SEED))
        return x * mask


@pytest.mark.parametrize("min_multiplications", [0, 2**40])
@pytest.mark.parametrize("is_training", [True, False])
def test_native_feed_forward_equals_the_models_in_value_and_gradient(
    is_training: bool, min_multiplications: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_linear, "_MIN_MULTIPLICATIONS", min_multiplications)
    monkeypatch.setattr(feed_forward, "draw_seed", lambda: SEED)
    part = FeedForward(ModelConfig(vocab_size=20, d_model=40, heads=2, d_ff=72, activation_dropout=RATE))
    model = nn.Sequential(part)
    use_native_feed_forward(model)
    assert isinstance(model[0], NativeFeedForward)
    part.add_module("dropout", KnownDropout())
    model.train(is_training)
    x = torch.randn(3, 11, 40, requires_grad=True)
    inputs = [x, *part.parameters()]
    if not is_training:
        part.add_module("dropout", nn.Identity())
    output, expected = model(x), part(x)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
    grad_output = torch.randn(11, 3, 40).transpose(0, 1)
    gradients, expected_gradients = (torch.autograd.grad(y, inputs, grad_output) for y in (output, expected))
    torch.testing.assert_close(gradients, expected_gradients, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("activation", ["gelu", "swish", "swiglu"])
def test_other_activations_stay_as_they_are(activation: str) -> None:
    config = ModelConfig.model_validate({"vocab_size": 20, "d_model": 40, "heads": 2, "activation": activation})
    model = nn.Sequential(FeedForward(config))
    use_native_feed_forward(model)
    assert isinstance(model[0], FeedForward)
