"""Dropout in compiled code takes what its hash says, forward and back."""

import pytest
import torch
from torch import nn

from heed.backends.cpu.dropout import DropoutStruct, NativeDropout, apply_dropout, use_native_dropout
from heed.backends.cpu.library import missing_for_compiled_code
from tests.reference.dropout import dropped

pytestmark = pytest.mark.skipif(missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code()))


@pytest.mark.parametrize("shape", [(40, 50), (3, 7, 33), (5,), (0, 8)])
def test_it_takes_what_its_hash_says(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    rows = x.reshape(-1, shape[-1])
    gone = dropped(123_456, 1, len(rows), shape[-1], 0.3, torch.device("cpu"))[0]
    torch.testing.assert_close(
        apply_dropout(x, DropoutStruct.of(0.3, 123_456)), (rows.masked_fill(gone, 0.0) / 0.7).view(shape)
    )


def test_what_is_left_makes_up_for_what_is_gone_forward_and_back() -> None:
    dropout, x = NativeDropout(0.25), torch.randn(50, 61, requires_grad=True)
    y = dropout(x)
    (by_x,) = torch.autograd.grad(y, x, torch.ones(61, 50).t())
    torch.testing.assert_close(y, x * by_x)
    assert by_x.unique().tolist() == pytest.approx([0.0, 1 / 0.75])


def test_it_follows_from_torchs_seed_and_never_repeats_itself() -> None:
    dropout, x, drawn = NativeDropout(0.5), torch.ones(100, 100), []
    for number in (7, 7, 8):
        torch.manual_seed(number)
        drawn.append([dropout(x) for _ in range(2)])
    assert torch.equal(drawn[0][0], drawn[1][0])
    assert torch.equal(drawn[0][1], drawn[1][1])
    masks = torch.stack([drawn[0][0], drawn[0][1], drawn[2][0]]).flatten(1)
    assert (torch.corrcoef(masks) - torch.eye(3)).abs().max() < 0.05


def test_it_takes_the_place_of_torchs_and_rests_when_the_model_does() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.1)))
    use_native_dropout(model)
    assert [part.rate for part in model.modules() if isinstance(part, NativeDropout)] == [0.5, 0.1]
    x = torch.randn(4, 5)
    assert model.eval()(x) is x
    assert NativeDropout(0.0)(x) is x
