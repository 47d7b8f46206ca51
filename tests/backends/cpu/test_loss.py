"""The chunked linear + cross-entropy in compiled code equals the loss of the logits, forward and backward."""

import pytest
import torch
from torch.nn import functional

from heed.backends.chunked_loss import torch_matmul
from heed.backends.cpu import loss as compiled_loss
from heed.backends.cpu.library import missing_for_compiled_code
from heed.backends.cpu.linear import matmul
from heed.backends.cpu.loss import make_linear_cross_entropy
from heed.errors import InputError
from heed.training.loss import loss_of_logits, smoothed_cross_entropy

pytestmark = pytest.mark.skipif(missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code()))


@pytest.mark.parametrize("native_matmul", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("r_drop", [0.0, 3.0])
@pytest.mark.parametrize("chunk_size", [1, 16 * 150, 2**23])
def test_the_chunked_loss_equals_the_loss_of_the_logits_in_value_and_gradient(
    native_matmul: bool,
    has_bias: bool,
    smoothing: float,
    r_drop: float,
    chunk_size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiled_loss, "LOGITS_AT_A_TIME", chunk_size)
    tokens, vocabulary, width = 40, 150, 24
    hidden, weight, bias = (
        torch.randn(*shape, requires_grad=True) for shape in ((tokens, width), (vocabulary, width), (vocabulary,))
    )
    inputs = [hidden, weight, bias] if has_bias else [hidden, weight]
    tgt_out = torch.randint(vocabulary, (tokens // 2,)).repeat(2)  # with R-Drop a batch holds every sentence twice
    tgt_out[[5, 19, 25, 39]] = 0
    loss = make_linear_cross_entropy(matmul if native_matmul else torch_matmul)
    chunked = loss(hidden, weight, bias if has_bias else None, tgt_out, 0, smoothing, r_drop)
    expected = loss_of_logits(functional.linear(*inputs), tgt_out, 0, smoothing, r_drop)
    torch.testing.assert_close(chunked, expected)
    grads, expected_grads = (torch.autograd.grad(loss * 0.3, inputs) for loss in (chunked, expected))
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, atol=1e-5, rtol=1e-4)


def test_huge_logits_stay_finite_and_nan_stays_nan() -> None:
    hidden, weight, tgt_out = torch.full((3, 4), 1e3), torch.randn(70, 4) * 10, torch.tensor([3, 4, 5])
    expected, _ = smoothed_cross_entropy(functional.linear(hidden, weight), tgt_out, 0, 0.1)
    torch.testing.assert_close(make_linear_cross_entropy(matmul)(hidden, weight, None, tgt_out, 0, 0.1, 0.0), expected)
    hidden[1, 2] = torch.nan
    assert make_linear_cross_entropy(matmul)(hidden, weight, None, tgt_out, 0, 0.1, 0.0).isnan()
    hidden[1, 2] = torch.inf
    assert not make_linear_cross_entropy(matmul)(hidden, weight, None, tgt_out, 0, 0.1, 0.0).isfinite()


@pytest.mark.parametrize("token_id", [-1, 70])
def test_a_target_outside_the_vocabulary_is_refused_by_value(token_id: int) -> None:
    with pytest.raises(InputError, match=f"tgt_out holds id {token_id}, outside a vocabulary of 70 tokens"):
        make_linear_cross_entropy(matmul)(
            torch.randn(2, 4), torch.randn(70, 4), None, torch.tensor([3, token_id]), 0, 0.1, 0.0
        )
