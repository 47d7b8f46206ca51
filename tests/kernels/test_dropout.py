import math

import pytest
import torch
from torch import nn

from heed.kernels.dropout import HashedDropout, kept, with_hashed_dropout


def seed(one: int, other: int) -> torch.Tensor:
    return torch.tensor([one, other], dtype=torch.int32)


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_hashed_dropout_takes_its_share_and_neighbours_know_nothing_of_one_another(share: float) -> None:
    dropout = HashedDropout(share, seed(123_456_789, -987_654_321))
    left = (dropout(torch.ones(400, 500)) > 0).float()
    assert abs(left.mean() - (1 - share)) < 0.005
    for lag in (1, 2, 500, 512):
        a, b = left.flatten()[lag:], left.flatten()[:-lag]
        assert abs(torch.corrcoef(torch.stack((a, b)))[0, 1]) < 0.01
    for axis in (0, 1):
        spread = math.sqrt(share * (1 - share) / left.shape[axis])
        assert (left.mean(axis) - (1 - share)).abs().max() < 5 * spread


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


def test_no_dropout_where_nothing_is_learnt() -> None:
    x = torch.randn(5, 6)
    assert HashedDropout(0.5, seed(1, 2)).eval()(x) is x


def test_all_dropouts_of_some_parts_are_replaced_and_read_their_seeds() -> None:
    inner = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.3)))
    model = nn.Sequential(inner, nn.Dropout(0.1))
    seeds = with_hashed_dropout([inner], torch.device("cpu"))
    assert isinstance(model[1], nn.Dropout)
    found = [part for part in model.modules() if isinstance(part, HashedDropout)]
    assert [part.share for part in found] == [0.5, 0.3]
    seeds.copy_(torch.tensor([[1, 2], [3, 4]]))
    assert [part.seed.tolist() for part in found] == [[1, 2], [3, 4]]
    assert not list(model.state_dict().keys() - {"0.0.weight", "0.0.bias"})
