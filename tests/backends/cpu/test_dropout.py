"""Dropout in compiled code drops what its hash selects, forward and backward."""

import pytest
import torch
from torch import nn

from heed.backends.cpu.dropout import DropoutStruct, NativeDropout, apply_dropout, use_native_dropout
from heed.backends.cpu.library import missing_for_compiled_code
from tests.reference.dropout import dropped

pytestmark = pytest.mark.skipif(missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code()))


@pytest.mark.parametrize("shape", [(40, 50), (3, 7, 33), (5,), (0, 8)])
def test_dropout_drops_what_its_hash_selects(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    rows = x.reshape(-1, shape[-1])
    mask = dropped(123_456, 1, len(rows), shape[-1], 0.3, torch.device("cpu"))[0]
    torch.testing.assert_close(
        apply_dropout(x, DropoutStruct.of(0.3, 123_456)), (rows.masked_fill(mask, 0.0) / 0.7).view(shape)
    )


def test_kept_values_are_scaled_up_forward_and_backward() -> None:
    dropout, x = NativeDropout(0.25), torch.randn(50, 61, requires_grad=True)
    y = dropout(x)
    (x_grad,) = torch.autograd.grad(y, x, torch.ones(61, 50).t())
    torch.testing.assert_close(y, x * x_grad)
    assert x_grad.unique().tolist() == pytest.approx([0.0, 1 / 0.75])


def test_dropout_is_determined_by_torchs_seed_and_differs_between_calls() -> None:
    dropout, x, outputs = NativeDropout(0.5), torch.ones(100, 100), []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        outputs.append([dropout(x) for _ in range(2)])
    assert torch.equal(outputs[0][0], outputs[1][0])
    assert torch.equal(outputs[0][1], outputs[1][1])
    masks = torch.stack([outputs[0][0], outputs[0][1], outputs[2][0]]).flatten(1)
    assert (torch.corrcoef(masks) - torch.eye(3)).abs().max() < 0.05


def test_use_native_dropout_replaces_torchs_and_evaluation_mode_drops_nothing() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.1)))
    use_native_dropout(model)
    assert [module.rate for module in model.modules() if isinstance(module, NativeDropout)] == [0.5, 0.1]
    x = torch.randn(4, 5)
    assert model.eval()(x) is x
    assert NativeDropout(0.0)(x) is x
