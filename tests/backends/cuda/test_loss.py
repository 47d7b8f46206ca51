import pytest
import torch
from torch.nn import functional

from heed.backends.cuda import loss as cross_entropy
from heed.backends.cuda.loss import linear_cross_entropy
from heed.training.loss import loss_of_logits, smoothed_cross_entropy


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small test then has several slices and blocks, the last of each not full."""
    monkeypatch.setattr(cross_entropy, "_CHUNK_SIZE", 16)
    monkeypatch.setattr(cross_entropy, "_BLOCK", 64)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("r_drop", [0.0, 3.0])
def test_the_chunked_loss_equals_the_loss_of_the_logits_in_value_and_gradient(
    has_bias: bool, smoothing: float, r_drop: float, device: torch.device
) -> None:
    tokens, vocabulary, width = 40, 150, 24
    hidden, weight, bias = (
        torch.randn(*shape, device=device, requires_grad=True)
        for shape in ((tokens, width), (vocabulary, width), (vocabulary,))
    )
    inputs = [hidden, weight, bias] if has_bias else [hidden, weight]
    tgt_out = torch.randint(vocabulary, (tokens // 2,), device=device).repeat(2)  # R-Drop: every sentence twice
    tgt_out[[5, 19, 25, 39]] = 0
    chunked = linear_cross_entropy(hidden, weight, bias if has_bias else None, tgt_out, 0, smoothing, r_drop)
    expected = loss_of_logits(functional.linear(*inputs), tgt_out, 0, smoothing, r_drop)
    torch.testing.assert_close(chunked, expected)
    grads, expected_grads = (torch.autograd.grad(loss * 0.3, inputs) for loss in (chunked, expected))
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, atol=1e-5, rtol=1e-4)


def test_huge_logits_stay_finite(device: torch.device) -> None:
    hidden = torch.full((3, 4), 1e3, device=device, requires_grad=True)
    weight = torch.randn(70, 4, device=device) * 10
    loss = linear_cross_entropy(hidden, weight, None, torch.tensor([3, 4, 5], device=device), 0, 0.1, 0.0)
    expected, _ = smoothed_cross_entropy(
        functional.linear(hidden, weight), torch.tensor([3, 4, 5], device=device), 0, 0.1
    )
    torch.testing.assert_close(loss, expected)
