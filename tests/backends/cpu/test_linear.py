"""Products of matrices that learn, in compiled code, are torch's own."""

from functools import partial

import pytest
import torch
from torch import nn

from heed.backends.chunked_loss import MatmulFn, torch_matmul
from heed.backends.cpu import linear as compiled_linear
from heed.backends.cpu.library import missing_for_compiled_code
from heed.backends.cpu.linear import NativeLinear, matmul, use_native_linear

pytestmark = pytest.mark.skipif(missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code()))

SIZES = [(1, 1, 1), (7, 3, 5), (8, 16, 32), (64, 256, 64), (65, 257, 33), (130, 600, 100), (600, 40, 31)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("which_is_transposed", ["neither", "left", "right", "both"])
def test_matrices_are_multiplied_as_torch_does(size: tuple[int, int, int], which_is_transposed: str) -> None:
    rows, depth, columns = size
    a, b = torch.randn(rows, depth), torch.randn(depth, columns)
    if which_is_transposed in {"left", "both"}:
        a = a.t().contiguous().t()
    if which_is_transposed in {"right", "both"}:
        b = b.t().contiguous().t()
    bias, there = torch.randn(columns), torch.randn(rows, columns)
    exact = a.double() @ b.double()
    close = partial(torch.testing.assert_close, atol=2e-4, rtol=1e-5)
    close(matmul(a, b).double(), exact)
    close(matmul(a, b, bias).double(), exact + bias)
    wanted = exact + there
    added = matmul(a, b, out=there, accumulate=True)
    assert added is there
    close(added.double(), wanted)
    close(matmul(a, b, out=there).double(), exact)


@pytest.mark.usefixtures("for_avx2")
def test_processors_without_avx512_multiply_the_same() -> None:
    for rows, depth, columns in SIZES:
        a, b = torch.randn(depth, rows).t(), torch.randn(depth, columns)
        torch.testing.assert_close(matmul(a, b), a @ b, atol=2e-4, rtol=1e-5)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_any_number_of_threads_finds_the_same_to_the_last_bit(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, bias = torch.randn(100, 300), torch.randn(300, 70), torch.randn(70)
    found = []
    for count in (1, threads):
        monkeypatch.setattr("heed.backends.cpu.linear.torch.get_num_threads", lambda count=count: count)
        found.append(matmul(a, b, bias))
    assert torch.equal(*found)


@pytest.mark.parametrize("multiply", [matmul, torch_matmul], ids=["native", "torch"])
def test_either_matmul_does_the_same(multiply: MatmulFn) -> None:
    a, b, there = torch.randn(5, 7), torch.randn(7, 6), torch.ones(5, 6)
    torch.testing.assert_close(multiply(a, b, torch.ones(6)), a @ b + 1)
    torch.testing.assert_close(multiply(a, b, out=there, accumulate=True), a @ b + 1)
    torch.testing.assert_close(multiply(a, b, out=there), a @ b)


@pytest.mark.parametrize("small", [0, 2**40])
def test_a_layer_learns_as_torchs_does(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_linear, "_MIN_MULTIPLICATIONS", small)
    linear = nn.Linear(40, 50)
    model = nn.Sequential(linear, nn.ReLU())
    use_native_linear(model)
    assert isinstance(model[0], NativeLinear)
    assert dict(model.named_parameters()).keys() == {"0.weight", "0.bias"}
    x = torch.randn(3, 11, 40, requires_grad=True)
    given = [x, linear.weight, linear.bias]
    ours, plain = model[0](x), linear(x)
    torch.testing.assert_close(ours, plain, atol=1e-5, rtol=1e-5)
    above = torch.randn(11, 3, 50).transpose(0, 1)
    for own, other in zip(
        torch.autograd.grad(ours, given, above), torch.autograd.grad(plain, given, above), strict=True
    ):
        torch.testing.assert_close(own, other, atol=1e-4, rtol=1e-5)
