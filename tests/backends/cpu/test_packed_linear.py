"""LinearFns in compiled code are those of torch, in integers those of rounded numbers."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from heed.artifacts.quantization import quantize_rows
from heed.backends.cpu import library as native_library
from heed.backends.cpu.build import CannotCompileError
from heed.backends.cpu.library import missing_for_compiled_code
from heed.backends.cpu.packed_linear import PackedLinear, pack_panels
from heed.backends.memory import HugePages
from heed.backends.torch.linear import LinearFn

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


def plain_integers(weight: Tensor, bias: Tensor | None) -> LinearFn:
    """The product that the compiled code takes in integers, in plain torch."""
    whole, scales = quantize_rows(weight)

    def multiply(x: Tensor) -> Tensor:
        largest = x.abs().amax(-1, keepdim=True).clamp(min=1e-12)
        in_steps = (x * (127.0 / largest) + 128.5).floor() - 128
        found = (in_steps.double() @ whole.double().T).float() * (largest / 127.0) * scales
        return found if bias is None else found + bias

    return multiply


@pytest.mark.parametrize("rows", [*range(1, 10), 16, 37])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_floats_are_multiplied_as_torch_does(size: tuple[int, int], rows: int) -> None:
    torch.manual_seed(rows)
    weight, bias, x = torch.randn(size), torch.randn(size[0]), torch.randn(rows, size[1])
    for added in (bias, None):
        expected = functional.linear(x.double(), weight.double(), None if added is None else added.double())
        torch.testing.assert_close(PackedLinear(weight, added, int8=False)(x).double(), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("rows", [*range(1, 10), 16, 37])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_integers_are_multiplied_exactly(size: tuple[int, int], rows: int) -> None:
    torch.manual_seed(rows)
    weight, bias = torch.randn(size), torch.randn(size[0])
    x = torch.randint(-127, 128, (rows, size[1])) / 64  # none between two steps, where it could go either way
    x[:, 0], x[0] = 127 / 64, 0.0  # and a row with nothing to divide by
    for added in (bias, None):
        expected = plain_integers(weight, added)(x)
        torch.testing.assert_close(PackedLinear(weight, added, int8=True)(x), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_threads_share_the_outputs(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heed.backends.cpu.packed_linear.threads_for", lambda _work: threads)
    weight, x = torch.randn(100, 40), torch.randn(2, 5, 40)
    torch.testing.assert_close(
        PackedLinear(weight, None, int8=False)(x), functional.linear(x, weight), atol=1e-4, rtol=1e-5
    )


def test_little_work_is_for_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heed.backends.cpu.library.torch.get_num_threads", lambda: 4)
    assert [native_library.threads_for(2**20 * size) for size in (1, 8, 12, 400)] == [1, 2, 3, 4]


def test_a_matrix_lies_in_the_order_in_which_it_is_read() -> None:
    weight = torch.arange(40 * 6).view(40, 6)
    panels = pack_panels(weight, 4, HugePages())
    assert panels.shape == (2, 2, 32, 4)
    assert panels[0, 0, 5].tolist() == weight[5, :4].tolist()
    assert panels[1, 1, 3].tolist() == [*weight[35, 4:].tolist(), 0, 0]
    assert not panels[1, :, 8:].any()


def test_compiling_in_vain_happens_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def fail(source: Path) -> None:
        tried.append(source)
        raise CannotCompileError("no luck")

    monkeypatch.setattr(native_library, "library", fail)
    native_library._library.cache_clear()
    try:
        assert [missing_for_compiled_code() for _ in range(3)] == ["no luck"] * 3
        with pytest.raises(CannotCompileError, match="no luck"):
            native_library.native()
    finally:
        native_library._library.cache_clear()
    assert len(tried) == 1
