"""The linear layer for training in compiled code equals torch's, forward and backward."""

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
def test_native_matmul_equals_torchs(size: tuple[int, int, int], which_is_transposed: str) -> None:
    rows, depth, columns = size
    a, b = torch.randn(rows, depth), torch.randn(depth, columns)
    if which_is_transposed in {"left", "both"}:
        a = a.t().contiguous().t()
    if which_is_transposed in {"right", "both"}:
        b = b.t().contiguous().t()
    bias, out = torch.randn(columns), torch.randn(rows, columns)
    exact = a.double() @ b.double()
    assert_close = partial(torch.testing.assert_close, atol=2e-4, rtol=1e-5)
    assert_close(matmul(a, b).double(), exact)
    assert_close(matmul(a, b, bias).double(), exact + bias)
    expected = exact + out
    added = matmul(a, b, out=out, accumulate=True)
    assert added is out
    assert_close(added.double(), expected)
    assert_close(matmul(a, b, out=out).double(), exact)


@pytest.mark.usefixtures("isa")
def test_native_matmul_equals_torchs_on_every_instruction_set() -> None:
    for rows, depth, columns in SIZES:
        a, b = torch.randn(depth, rows).t(), torch.randn(depth, columns)
        torch.testing.assert_close(matmul(a, b), a @ b, atol=2e-4, rtol=1e-5)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_matmul_is_bit_identical_for_any_number_of_threads(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, bias = torch.randn(100, 300), torch.randn(300, 70), torch.randn(70)
    outputs = []
    for count in (1, threads):
        monkeypatch.setattr("heed.backends.cpu.linear.torch.get_num_threads", lambda count=count: count)
        outputs.append(matmul(a, b, bias))
    assert torch.equal(*outputs)


@pytest.mark.parametrize("multiply", [matmul, torch_matmul], ids=["native", "torch"])
def test_native_and_torch_matmul_accept_bias_out_and_accumulate(multiply: MatmulFn) -> None:
    a, b, out = torch.randn(5, 7), torch.randn(7, 6), torch.ones(5, 6)
    torch.testing.assert_close(multiply(a, b, torch.ones(6)), a @ b + 1)
    torch.testing.assert_close(multiply(a, b, out=out, accumulate=True), a @ b + 1)
    torch.testing.assert_close(multiply(a, b, out=out), a @ b)


@pytest.mark.parametrize("min_multiplications", [0, 2**40])
def test_native_linear_equals_torchs_in_value_and_gradient(
    min_multiplications: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_linear, "_MIN_MULTIPLICATIONS", min_multiplications)
    linear = nn.Linear(40, 50)
    model = nn.Sequential(linear, nn.ReLU())
    use_native_linear(model)
    assert isinstance(model[0], NativeLinear)
    assert dict(model.named_parameters()).keys() == {"0.weight", "0.bias"}
    x = torch.randn(3, 11, 40, requires_grad=True)
    inputs = [x, linear.weight, linear.bias]
    output, expected = model[0](x), linear(x)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
    grad_output = torch.randn(11, 3, 50).transpose(0, 1)
    for grad, expected_grad in zip(
        torch.autograd.grad(output, inputs, grad_output),
        torch.autograd.grad(expected, inputs, grad_output),
        strict=True,
    ):
        torch.testing.assert_close(grad, expected_grad, atol=1e-4, rtol=1e-5)
