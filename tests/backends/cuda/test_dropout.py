import math

import pytest
import torch
from torch import nn

from heed.backends.cuda.dropout import HashedDropout, kept, with_hashed_dropout
from heed.backends.torch.training import BitwiseDropout, use_bitwise_dropout


def seed(one: int, other: int) -> torch.Tensor:
    return torch.tensor([one, other], dtype=torch.int32)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_hashed_dropout_takes_its_share_and_neighbours_know_nothing_of_one_another(rate: float) -> None:
    dropout = HashedDropout(rate, seed(123_456_789, -987_654_321))
    left = (dropout(torch.ones(400, 500)) > 0).float()
    assert abs(left.mean() - (1 - rate)) < 0.005
    for lag in (1, 2, 500, 512):
        a, b = left.flatten()[lag:], left.flatten()[:-lag]
        assert abs(torch.corrcoef(torch.stack((a, b)))[0, 1]) < 0.01
    for axis in (0, 1):
        spread = math.sqrt(rate * (1 - rate) / left.shape[axis])
        assert (left.mean(axis) - (1 - rate)).abs().max() < 5 * spread


def test_every_seed_takes_others() -> None:
    number = torch.arange(200_000, dtype=torch.int32)
    masks = [kept(number, seed(*both), 0.3).float() for both in ((1, 1), (1, 2), (2, 1), (7, -5))]
    together = torch.corrcoef(torch.stack(masks))
    assert (together - torch.eye(4)).abs().max() < 0.01


def test_what_is_left_makes_up_for_what_is_gone_forward_and_back() -> None:
    dropout = HashedDropout(0.25, seed(5, 6))
    x = torch.randn(50, 60, requires_grad=True)
    y = dropout(x)
    (by_x,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(by_x != 0, y != 0)
    torch.testing.assert_close(y, x * by_x)
    assert by_x.unique().tolist() == pytest.approx([0.0, 1 / 0.75])


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_raw_dropout_takes_its_share_and_neighbours_know_nothing_of_one_another(rate: float) -> None:
    torch.manual_seed(3)
    left = (BitwiseDropout(rate)(torch.ones(401, 501)) > 0).float()  # not a multiple of four
    assert abs(left.mean() - (1 - rate)) < 0.005
    for lag in (1, 2, 3, 4, 501):
        a, b = left.flatten()[lag:], left.flatten()[:-lag]
        assert abs(torch.corrcoef(torch.stack((a, b)))[0, 1]) < 0.01


def test_raw_dropout_follows_from_torchs_seed_and_never_repeats_itself() -> None:
    dropout, x, drawn = BitwiseDropout(0.5), torch.ones(100, 100), []
    for number in (7, 7, 8):
        torch.manual_seed(number)
        drawn.append([dropout(x) for _ in range(2)])
    assert torch.equal(drawn[0][0], drawn[1][0])
    assert torch.equal(drawn[0][1], drawn[1][1])
    masks = torch.stack([drawn[0][0], drawn[0][1], drawn[2][0]]).flatten(1)
    assert (torch.corrcoef(masks) - torch.eye(3)).abs().max() < 0.05


def test_what_raw_dropout_leaves_makes_up_for_what_is_gone_forward_and_back() -> None:
    x = torch.randn(50, 61, requires_grad=True)
    y = BitwiseDropout(0.25)(x)
    (by_x,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(y, x * by_x)
    assert by_x.unique().tolist() == pytest.approx([0.0, 1 / 0.75])


def test_no_dropout_where_nothing_is_learnt() -> None:
    x = torch.randn(5, 6)
    assert HashedDropout(0.5, seed(1, 2)).eval()(x) is x
    assert BitwiseDropout(0.5).eval()(x) is x
    assert BitwiseDropout(0.0)(x) is x


def test_all_dropouts_of_some_parts_are_replaced_and_read_their_seeds() -> None:
    inner = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.3)))
    model = nn.Sequential(inner, nn.Dropout(0.1))
    seeds = with_hashed_dropout([inner], torch.device("cpu"))
    assert isinstance(model[1], nn.Dropout)
    found = [part for part in model.modules() if isinstance(part, HashedDropout)]
    assert [part.rate for part in found] == [0.5, 0.3]
    seeds.copy_(torch.tensor([[1, 2], [3, 4]]))
    assert [part.seed.tolist() for part in found] == [[1, 2], [3, 4]]
    assert not list(model.state_dict().keys() - {"0.0.weight", "0.0.bias"})


def test_use_bitwise_dropout_replaces_every_dropout() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.3)))
    use_bitwise_dropout(model)
    found = [part for part in model.modules() if isinstance(part, BitwiseDropout)]
    assert [part.rate for part in found] == [0.5, 0.3]
    assert not any(isinstance(part, nn.Dropout) for part in model.modules())
