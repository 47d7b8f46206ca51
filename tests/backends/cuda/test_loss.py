import pytest
import torch
from torch.nn import functional

from heed.backends.cuda import loss as cross_entropy
from heed.backends.cuda.loss import linear_cross_entropy
from heed.training.loss import smoothed_cross_entropy


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small test has several slices and blocks, the last of each not full."""
    monkeypatch.setattr(cross_entropy, "_SLICE", 16)
    monkeypatch.setattr(cross_entropy, "_BLOCK", 64)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_straight_from_vectors_equals_the_loss_of_logits(
    has_bias: bool, smoothing: float, device: torch.device
) -> None:
    tokens, words, width = 40, 150, 24
    vectors, weight, bias = (
        torch.randn(*shape, device=device, requires_grad=True) for shape in ((tokens, width), (words, width), (words,))
    )
    given = [vectors, weight, bias] if has_bias else [vectors, weight]
    tgt_out = torch.randint(words, (tokens,), device=device)
    tgt_out[[5, 39]] = 0
    ours = linear_cross_entropy(vectors, weight, bias if has_bias else None, tgt_out, 0, smoothing)
    plain, _ = smoothed_cross_entropy(functional.linear(*given), tgt_out, 0, smoothing)
    torch.testing.assert_close(ours, plain)
    found, wanted = (torch.autograd.grad(loss * 0.3, given) for loss in (ours, plain))
    for own, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(own, other, atol=1e-5, rtol=1e-4)


def test_huge_logits_stay_finite(device: torch.device) -> None:
    vectors = torch.full((3, 4), 1e3, device=device, requires_grad=True)
    weight = torch.randn(70, 4, device=device) * 10
    loss = linear_cross_entropy(vectors, weight, None, torch.tensor([3, 4, 5], device=device), 0, 0.1)
    plain, _ = smoothed_cross_entropy(
        functional.linear(vectors, weight), torch.tensor([3, 4, 5], device=device), 0, 0.1
    )
    torch.testing.assert_close(loss, plain)
