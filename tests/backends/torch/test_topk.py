import pytest
import torch

from heed.backends.cpu.packed_linear import missing_for_compiled_code
from heed.backends.torch import topk as ranking
from heed.backends.torch.topk import likeliest, likeliest_one

SIZES = [3, 128, 511, 512, 513, 1000, 3000]  # runs are of 128, and below four of them torch does the work


@pytest.fixture(params=["by torch", "compiled"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "by torch":
        monkeypatch.setattr(ranking, "can_rank", lambda _: False)
    elif missing_for_compiled_code() is not None:
        pytest.skip(str(missing_for_compiled_code()))


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


def test_what_is_no_number_is_not_hidden() -> None:
    values = torch.full((2, 700), torch.nan)
    values[1] = 0.0
    best, _ = likeliest(values, 5)
    assert best[0].isnan().all()
    assert torch.equal(best[1], torch.zeros(5))
    assert likeliest_one(values)[0] < 700


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_share_the_rows(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heed.backends.cpu.topk.threads_for", lambda _: threads)
    values = torch.randn(7, 600)
    expected = values.sort(dim=-1, descending=True, stable=True)
    best, tokens = likeliest(values, 9)
    assert torch.equal(best, expected.values[:, :9])
    assert torch.equal(tokens, expected.indices[:, :9])
