import pytest
import torch
from torch import nn

from heed.backends.cuda.column_sums import column_sums
from heed.backends.cuda.linear import TritonLinear, use_triton_linear

# torch warns when the first matmul of the backward pass runs in a thread without a CUDA context, and then creates one.
pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("count", "width"), [(1, 8), (33, 65), (700, 130)])
def test_column_sums_equal_a_sum_over_rows(count: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
    x = torch.randn(count, width, device=device).to(dtype)
    expected = x.double().sum(0).to(dtype)
    torch.testing.assert_close(column_sums(x), expected, atol=1e-4, rtol=1e-5 if dtype == torch.float32 else 1e-2)


def test_column_sums_over_more_tiles_than_programs(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    monkeypatch.setattr("heed.backends.cuda.column_sums._PROGRAMS", 2)
    x = torch.randn(16, 500, device=device).t()
    torch.testing.assert_close(column_sums(x), x.sum(0), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("shape", [(50, 24), (3, 5, 24)])
def test_triton_linear_equals_torchs_forward_and_backward(shape: tuple[int, ...], device: torch.device) -> None:
    layer = nn.Linear(24, 40).to(device)
    x = torch.randn(shape, device=device).requires_grad_()
    inputs = [x, layer.weight, layer.bias]
    grad_output = torch.randn(*shape[:-1], 40, device=device)
    output, expected = (function(x) for function in (TritonLinear(layer), layer))
    torch.testing.assert_close(output, expected)
    grads, expected_grads = (torch.autograd.grad(y, inputs, grad_output) for y in (output, expected))
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, atol=1e-5, rtol=1e-4)


def test_use_triton_linear_keeps_weights_and_layers_without_a_bias() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.Linear(3, 2, bias=False)))
    before = {name: id(weight) for name, weight in model.named_parameters()}
    use_triton_linear(model)
    assert isinstance(model[0], TritonLinear)
    assert isinstance(model[1][0], nn.Linear)  # type: ignore[index]
    assert {name: id(weight) for name, weight in model.named_parameters()} == before
