import pytest
import torch

from heed.backends.base import TORCH_OPS, SearchOps
from heed.backends.cpu.library import missing_for_compiled_code
from heed.backends.select import search_ops

SIZES = [3, 128, 511, 512, 513, 1000, 3000]  # blocks have 128 values; below four blocks torch is used


@pytest.fixture(params=["torch", "native"])
def ops(request: pytest.FixtureRequest) -> SearchOps:
    if request.param == "native" and missing_for_compiled_code() is not None:
        pytest.skip(str(missing_for_compiled_code()))
    return TORCH_OPS if request.param == "torch" else search_ops(torch.device("cpu"))


def rows(size: int, levels: int) -> torch.Tensor:
    """Rows with many equal values; some rows are mostly or entirely -inf."""
    values = -torch.randint(levels, (40, size)).float()
    values[:5, 2:] = -torch.inf
    values[5:9, : size - 1] = -torch.inf
    values[9] = -torch.inf
    return values


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("levels", [1, 3, 100, 10**6])
def test_argmax_returns_the_first_of_equal_maxima(ops: SearchOps, size: int, levels: int) -> None:
    values = rows(size, levels)
    assert torch.equal(ops.argmax(values), values.argmax(-1))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("levels", [1, 3, 100, 10**6])
def test_topk_equals_a_stable_sort(ops: SearchOps, size: int, levels: int) -> None:
    values = rows(size, levels)
    expected, order = values.sort(dim=-1, descending=True, stable=True)
    for count in (1, 5):
        best, tokens = ops.topk(values, count)
        real = expected[:, :count] > -torch.inf
        assert torch.equal(best, expected[:, :count])
        assert torch.equal(tokens[real], order[:, :count][real])


def test_topk_keeps_nan(ops: SearchOps) -> None:
    values = torch.full((2, 700), torch.nan)
    values[1] = 0.0
    best, _ = ops.topk(values, 5)
    assert best[0].isnan().all()
    assert torch.equal(best[1], torch.zeros(5))
    assert ops.argmax(values)[0] < 700


@pytest.mark.parametrize("threads", [1, 3])
def test_topk_is_the_same_for_any_number_of_threads(
    ops: SearchOps, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heed.backends.cpu.search_ops.threads_for", lambda _: threads)
    values = torch.randn(7, 600)
    expected = values.sort(dim=-1, descending=True, stable=True)
    best, tokens = ops.topk(values, 9)
    assert torch.equal(best, expected.values[:, :9])
    assert torch.equal(tokens, expected.indices[:, :9])
