import pytest
import torch

from heed.decoding.ranking import likeliest, likeliest_one

SIZES = [3, 128, 511, 512, 513, 1000, 3000]  # runs are of 128, and below four of them torch does the work


def rows(size: int, levels: int) -> torch.Tensor:
    """Many rows with many equals, some of them mostly or wholly impossible."""
    values = -torch.randint(levels, (40, size)).float()
    values[:5, 2:] = -torch.inf
    values[5:9, : size - 1] = -torch.inf
    values[9] = -torch.inf
    return values


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("levels", [1, 3, 100, 10**6])
def test_the_likeliest_of_equals_is_the_first(size: int, levels: int) -> None:
    values = rows(size, levels)
    assert torch.equal(likeliest_one(values), values.argmax(-1))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("levels", [1, 3, 100, 10**6])
def test_the_likeliest_of_a_large_vocabulary_are_those_of_a_stable_sort(size: int, levels: int) -> None:
    values = rows(size, levels)
    expected, order = values.sort(dim=-1, descending=True, stable=True)
    for count in (1, 5):
        best, tokens = likeliest(values, count)
        real = expected[:, :count] > -torch.inf
        assert torch.equal(best, expected[:, :count])
        assert torch.equal(tokens[real], order[:, :count][real])
