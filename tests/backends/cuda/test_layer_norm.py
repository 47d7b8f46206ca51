import pytest
import torch
from torch import nn

from heed.backends.cuda import layer_norm
from heed.backends.cuda.layer_norm import TritonLayerNorm, use_triton_layer_norm


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that each program has several tiles, the last not full."""
    monkeypatch.setattr(layer_norm, "_PROGRAMS", 3)


@pytest.mark.parametrize(("count", "width"), [(1, 8), (50, 24), (61, 64)])
def test_a_quick_norm_is_a_layer_norm_forward_and_back(count: int, width: int, device: torch.device) -> None:
    plain = nn.LayerNorm(width, eps=1e-3).to(device)
    nn.init.normal_(plain.weight)
    nn.init.normal_(plain.bias)
    x = (3 * torch.randn(count, width, device=device) + 5).requires_grad_()
    above = torch.randn(count, width, device=device)
    given = [x, plain.weight, plain.bias]
    ours, theirs = (norm(x) for norm in (TritonLayerNorm(plain), plain))
    torch.testing.assert_close(ours, theirs)
    found, wanted = (torch.autograd.grad(y, given, above) for y in (ours, theirs))
    for own, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(own, other, atol=1e-5, rtol=1e-4)


def test_half_the_bytes_cost_no_more_than_rounding(device: torch.device) -> None:
    plain = nn.LayerNorm(64).to(device)
    x = torch.randn(200, 64, device=device)
    above = torch.randn(200, 64, device=device)
    exact = torch.autograd.grad(plain(x.requires_grad_()), [x, plain.weight, plain.bias], above)
    half, rounded = TritonLayerNorm(nn.LayerNorm(64).to(device, torch.bfloat16)), x.detach().bfloat16().requires_grad_()
    found = torch.autograd.grad(half(rounded), [rounded, half.weight, half.bias], above.bfloat16())
    for own, other in zip(found, exact, strict=True):
        assert own.dtype == torch.bfloat16
        assert (own.float() - other).norm() < 0.01 * other.norm()


def test_numbers_may_lie_anyhow(device: torch.device) -> None:
    plain = nn.LayerNorm(16).to(device)
    x = torch.randn(16, 30, device=device).t().requires_grad_()
    above = torch.randn(16, 30, device=device).t()
    found, wanted = (torch.autograd.grad(norm(x), x, above)[0] for norm in (TritonLayerNorm(plain), plain))
    torch.testing.assert_close(found, wanted)


def test_all_norms_of_a_model_are_replaced_and_keep_their_weights() -> None:
    model = nn.Sequential(nn.LayerNorm(4), nn.Sequential(nn.LayerNorm(4)), nn.Identity())
    before = {name: weight.data_ptr() for name, weight in model.named_parameters()}
    use_triton_layer_norm(model)
    assert not any(isinstance(part, nn.LayerNorm) for part in model.modules())
    assert {name: weight.data_ptr() for name, weight in model.named_parameters()} == before
