"""The loss in compiled code is that of the logits, and so are its gradients."""

import pytest
import torch
from torch.nn import functional

from heed.backends.chunked_loss import torch_matmul
from heed.backends.cpu import loss as compiled_loss
from heed.backends.cpu.library import missing_for_compiled_code
from heed.backends.cpu.linear import matmul
from heed.backends.cpu.loss import linear_cross_entropy
from heed.errors import InputError
from heed.training.loss import smoothed_cross_entropy

pytestmark = pytest.mark.skipif(missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code()))


@pytest.mark.parametrize("has_own_products", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("logits_at_a_time", [1, 16 * 150, 2**23])
def test_the_loss_straight_from_vectors_equals_the_loss_of_logits(
    has_own_products: bool, has_bias: bool, smoothing: float, logits_at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_loss, "LOGITS_AT_A_TIME", logits_at_a_time)
    tokens, words, width = 40, 150, 24
    vectors, weight, bias = (
        torch.randn(*shape, requires_grad=True) for shape in ((tokens, width), (words, width), (words,))
    )
    given = [vectors, weight, bias] if has_bias else [vectors, weight]
    tgt_out = torch.randint(words, (tokens,))
    tgt_out[[5, 39]] = 0
    loss = linear_cross_entropy(matmul if has_own_products else torch_matmul)
    ours = loss(vectors, weight, bias if has_bias else None, tgt_out, 0, smoothing)
    plain, _ = smoothed_cross_entropy(functional.linear(*given), tgt_out, 0, smoothing)
    torch.testing.assert_close(ours, plain)
    found, wanted = (torch.autograd.grad(loss * 0.3, given) for loss in (ours, plain))
    for own, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(own, other, atol=1e-5, rtol=1e-4)


def test_huge_logits_stay_finite_and_nan_stays_nan() -> None:
    vectors, weight, tgt_out = torch.full((3, 4), 1e3), torch.randn(70, 4) * 10, torch.tensor([3, 4, 5])
    plain, _ = smoothed_cross_entropy(functional.linear(vectors, weight), tgt_out, 0, 0.1)
    torch.testing.assert_close(linear_cross_entropy(matmul)(vectors, weight, None, tgt_out, 0, 0.1), plain)
    vectors[1, 2] = torch.nan
    assert linear_cross_entropy(matmul)(vectors, weight, None, tgt_out, 0, 0.1).isnan()
    vectors[1, 2] = torch.inf
    assert not linear_cross_entropy(matmul)(vectors, weight, None, tgt_out, 0, 0.1).isfinite()


@pytest.mark.parametrize("wrong", [-1, 70])
def test_an_id_that_is_no_word_is_named(wrong: int) -> None:
    with pytest.raises(InputError, match=f"tgt_out holds id {wrong}, outside a vocabulary of 70 tokens"):
        linear_cross_entropy(matmul)(torch.randn(2, 4), torch.randn(70, 4), None, torch.tensor([3, wrong]), 0, 0.1)
