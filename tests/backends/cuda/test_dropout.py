import math

import pytest
import torch
from torch import nn

from heed.backends.cuda.dropout import HashedDropout, keep_mask, use_hashed_dropout
from heed.backends.torch.training import BitwiseDropout, use_bitwise_dropout


def seed(first: int, second: int) -> torch.Tensor:
    return torch.tensor([first, second], dtype=torch.int32)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_hashed_dropout_has_the_right_rate_and_neighbours_are_uncorrelated(rate: float) -> None:
    dropout = HashedDropout(rate, seed(123_456_789, -987_654_321))
    kept_values = (dropout(torch.ones(400, 500)) > 0).float()
    assert abs(kept_values.mean() - (1 - rate)) < 0.005
    for lag in (1, 2, 500, 512):
        a, b = kept_values.flatten()[lag:], kept_values.flatten()[:-lag]
        assert abs(torch.corrcoef(torch.stack((a, b)))[0, 1]) < 0.01
    for axis in (0, 1):
        deviation = math.sqrt(rate * (1 - rate) / kept_values.shape[axis])
        assert (kept_values.mean(axis) - (1 - rate)).abs().max() < 5 * deviation


def test_masks_of_different_seeds_are_uncorrelated() -> None:
    index = torch.arange(200_000, dtype=torch.int32)
    masks = [keep_mask(index, seed(*seeds), 0.3).float() for seeds in ((1, 1), (1, 2), (2, 1), (7, -5))]
    correlations = torch.corrcoef(torch.stack(masks))
    assert (correlations - torch.eye(4)).abs().max() < 0.01


def test_hashed_dropout_scales_kept_values_up_forward_and_backward() -> None:
    dropout = HashedDropout(0.25, seed(5, 6))
    x = torch.randn(50, 60, requires_grad=True)
    y = dropout(x)
    (x_grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(x_grad != 0, y != 0)
    torch.testing.assert_close(y, x * x_grad)
    assert x_grad.unique().tolist() == pytest.approx([0.0, 1 / 0.75])


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_bitwise_dropout_has_the_right_rate_and_neighbours_are_uncorrelated(rate: float) -> None:
    torch.manual_seed(3)
    kept_values = (BitwiseDropout(rate)(torch.ones(401, 501)) > 0).float()  # not a multiple of four
    assert abs(kept_values.mean() - (1 - rate)) < 0.005
    for lag in (1, 2, 3, 4, 501):
        a, b = kept_values.flatten()[lag:], kept_values.flatten()[:-lag]
        assert abs(torch.corrcoef(torch.stack((a, b)))[0, 1]) < 0.01


def test_bitwise_dropout_is_determined_by_torchs_seed_and_differs_between_calls() -> None:
    dropout, x, outputs = BitwiseDropout(0.5), torch.ones(100, 100), []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        outputs.append([dropout(x) for _ in range(2)])
    assert torch.equal(outputs[0][0], outputs[1][0])
    assert torch.equal(outputs[0][1], outputs[1][1])
    masks = torch.stack([outputs[0][0], outputs[0][1], outputs[2][0]]).flatten(1)
    assert (torch.corrcoef(masks) - torch.eye(3)).abs().max() < 0.05


def test_bitwise_dropout_scales_kept_values_up_forward_and_backward() -> None:
    x = torch.randn(50, 61, requires_grad=True)
    y = BitwiseDropout(0.25)(x)
    (x_grad,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(y, x * x_grad)
    assert x_grad.unique().tolist() == pytest.approx([0.0, 1 / 0.75])


def test_evaluation_mode_or_rate_0_drops_nothing() -> None:
    x = torch.randn(5, 6)
    assert HashedDropout(0.5, seed(1, 2)).eval()(x) is x
    assert BitwiseDropout(0.5).eval()(x) is x
    assert BitwiseDropout(0.0)(x) is x


def test_with_hashed_dropout_replaces_every_dropout_of_the_given_modules_and_returns_their_seeds() -> None:
    inner = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.3)))
    model = nn.Sequential(inner, nn.Dropout(0.1))
    seeds = use_hashed_dropout([inner], torch.device("cpu"))
    assert isinstance(model[1], nn.Dropout)
    dropouts = [module for module in model.modules() if isinstance(module, HashedDropout)]
    assert [module.rate for module in dropouts] == [0.5, 0.3]
    seeds.copy_(torch.tensor([[1, 2], [3, 4]]))
    assert [module.seed.tolist() for module in dropouts] == [[1, 2], [3, 4]]
    assert not list(model.state_dict().keys() - {"0.0.weight", "0.0.bias"})


def test_use_bitwise_dropout_replaces_every_dropout() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.3)))
    use_bitwise_dropout(model)
    dropouts = [module for module in model.modules() if isinstance(module, BitwiseDropout)]
    assert [module.rate for module in dropouts] == [0.5, 0.3]
    assert not any(isinstance(module, nn.Dropout) for module in model.modules())
