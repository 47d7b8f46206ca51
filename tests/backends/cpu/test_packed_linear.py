"""The linear layer for inference in compiled code equals torch's; in int8, the reference int8 layer."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from heed.backends.cpu import library as native_library
from heed.backends.cpu.library import missing_for_compiled_code
from heed.backends.cpu.packed_linear import pack_panels
from heed.backends.memory import HugePages
from heed.backends.torch.linear import compiled_linear
from tests.reference.linear import reference_int8_linear

pytestmark = pytest.mark.skipif(missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code()))

SIZES = [
    (1, 1),
    (5, 3),
    (31, 7),
    (32, 64),
    (33, 65),
    (100, 130),
    (700, 1000),
]  # outputs, inputs; the last in large pages


@pytest.mark.parametrize("rows", [*range(1, 10), 16, 37])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_packed_linear_equals_torchs(size: tuple[int, int], rows: int) -> None:
    torch.manual_seed(rows)
    weight, bias, x = torch.randn(size), torch.randn(size[0]), torch.randn(rows, size[1])
    for optional_bias in (bias, None):
        expected = functional.linear(
            x.double(), weight.double(), None if optional_bias is None else optional_bias.double()
        )
        torch.testing.assert_close(
            compiled_linear(weight, optional_bias, int8=False)(x).double(), expected, atol=1e-4, rtol=1e-5
        )


@pytest.mark.parametrize("rows", [*range(1, 10), 16, 37])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_packed_int8_linear_equals_the_reference(size: tuple[int, int], rows: int) -> None:
    torch.manual_seed(rows)
    weight, bias = torch.randn(size), torch.randn(size[0])
    x = torch.randint(-127, 128, (rows, size[1])) / 64  # no ties in rounding
    x[:, 0], x[0] = 127 / 64, 0.0  # the first row is all zeros: its scale would be 0
    for optional_bias in (bias, None):
        expected = reference_int8_linear(weight, optional_bias)(x)
        torch.testing.assert_close(compiled_linear(weight, optional_bias, int8=True)(x), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_packed_linear_equals_torchs_for_any_number_of_threads(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heed.backends.cpu.packed_linear.threads_for", lambda _work: threads)
    weight, x = torch.randn(100, 40), torch.randn(2, 5, 40)
    torch.testing.assert_close(
        compiled_linear(weight, None, int8=False)(x), functional.linear(x, weight), atol=1e-4, rtol=1e-5
    )


def test_small_matmuls_use_fewer_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 4)
    assert [native_library.threads_for(2**20 * size) for size in (1, 8, 12, 400)] == [1, 2, 3, 4]


def test_pack_panels_stores_the_weight_in_the_order_it_is_read() -> None:
    weight = np.arange(40 * 6, dtype=np.uint8).view(np.int8).reshape(40, 6)
    panels = pack_panels(weight, 4, HugePages())
    assert panels.shape == (2, 2, 32, 4)
    assert panels[0, 0, 5].tolist() == weight[5, :4].tolist()
    assert panels[1, 1, 3].tolist() == [*weight[35, 4:].tolist(), 0, 0]
    assert not panels[1, :, 8:].any()
