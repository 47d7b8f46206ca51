import pytest
import torch
from torch import nn

from heed.backends.cuda import layer_norm
from heed.backends.cuda.layer_norm import TritonLayerNorm, use_triton_layer_norm


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each Triton program then has several tiles, the last not full."""
    monkeypatch.setattr(layer_norm, "_PROGRAMS", 3)
    monkeypatch.setattr(layer_norm, "_TILE_SIZE", 256)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize(("count", "width"), [(1, 8), (50, 24), (61, 64)])
def test_triton_layer_norm_equals_torchs_forward_and_backward(
    count: int, width: int, is_compiled: bool, device: torch.device
) -> None:
    torch_norm = nn.LayerNorm(width, eps=1e-3).to(device)
    nn.init.normal_(torch_norm.weight)
    nn.init.normal_(torch_norm.bias)
    x = (3 * torch.randn(count, width, device=device) + 5).requires_grad_()
    grad_output = torch.randn(count, width, device=device)
    inputs = [x, torch_norm.weight, torch_norm.bias]
    output, expected = (norm(x) for norm in (TritonLayerNorm(torch_norm, is_compiled=is_compiled), torch_norm))
    torch.testing.assert_close(output, expected)
    grads, expected_grads = (torch.autograd.grad(y, inputs, grad_output) for y in (output, expected))
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, atol=1e-5, rtol=1e-4)


def test_bfloat16_gradients_differ_from_float32_only_by_rounding(device: torch.device) -> None:
    torch_norm = nn.LayerNorm(64).to(device)
    x = torch.randn(200, 64, device=device)
    grad_output = torch.randn(200, 64, device=device)
    expected_grads = torch.autograd.grad(
        torch_norm(x.requires_grad_()), [x, torch_norm.weight, torch_norm.bias], grad_output
    )
    half, bfloat16_x = (
        TritonLayerNorm(nn.LayerNorm(64).to(device, torch.bfloat16), is_compiled=False),
        x.detach().bfloat16().requires_grad_(),
    )
    grads = torch.autograd.grad(half(bfloat16_x), [bfloat16_x, half.weight, half.bias], grad_output.bfloat16())
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        assert grad.dtype == torch.bfloat16
        assert (grad.float() - expected_grad).norm() < 0.01 * expected_grad.norm()


def test_transposed_inputs_give_the_same_gradient(device: torch.device) -> None:
    torch_norm = nn.LayerNorm(16).to(device)
    x = torch.randn(16, 30, device=device).t().requires_grad_()
    grad_output = torch.randn(16, 30, device=device).t()
    norms = TritonLayerNorm(torch_norm, is_compiled=False), torch_norm
    output, expected = (norm(x) for norm in norms)
    torch.testing.assert_close(output, expected)
    grad, expected_grad = (torch.autograd.grad(y, x, grad_output)[0] for y in (output, expected))
    torch.testing.assert_close(grad, expected_grad)


def test_use_triton_layer_norm_replaces_every_layer_norm_and_keeps_the_weights() -> None:
    model = nn.Sequential(nn.LayerNorm(4), nn.Sequential(nn.LayerNorm(4)), nn.Identity())
    before = {name: weight.data_ptr() for name, weight in model.named_parameters()}
    use_triton_layer_norm(model, is_compiled=True)
    assert not any(isinstance(module, nn.LayerNorm) for module in model.modules())
    assert {name: weight.data_ptr() for name, weight in model.named_parameters()} == before
