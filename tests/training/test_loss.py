import numpy as np
import pytest
import torch
from torch.nn import functional

from heed.training.loss import smoothed_cross_entropy, symmetric_kl


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(3, 4), (12,)], ids=["rows", "packed"])
def test_the_smoothed_cross_entropy_equals_its_formula_in_numpy(smoothing: float, shape: tuple[int, ...]) -> None:
    logits = torch.randn(*shape, 7, dtype=torch.float64)
    tgt_out = torch.randint(0, 7, shape)
    total, tokens = smoothed_cross_entropy(logits, tgt_out, pad_id=0, smoothing=smoothing)

    expected = 0.0
    for row, token in zip(logits.view(-1, 7).numpy(), tgt_out.flatten().tolist(), strict=True):
        if token != 0:
            distribution = np.full(7, smoothing / 7)
            distribution[token] += 1 - smoothing
            expected -= (distribution * (row - np.log(np.exp(row).sum()))).sum()
    np.testing.assert_allclose(total.item(), expected, atol=1e-10)
    assert tokens.item() == (tgt_out != 0).sum().item()


def test_the_losses_of_micro_batches_add_up_to_that_of_the_batch() -> None:
    logits, tgt_out = torch.randn(6, 5, 7, dtype=torch.float64), torch.randint(0, 7, (6, 5))
    full_batch = smoothed_cross_entropy(logits, tgt_out, 0, 0.1)
    parts = [smoothed_cross_entropy(logits[i : i + 2], tgt_out[i : i + 2], 0, 0.1) for i in range(0, 6, 2)]
    torch.testing.assert_close(sum(total for total, _ in parts), full_batch[0])
    assert sum(tokens for _, tokens in parts) == full_batch[1]


def test_symmetric_kl_is_the_mean_of_both_divergences() -> None:
    first, second = torch.randn(6, 7), torch.randn(6, 7)
    p, q = first.log_softmax(-1), second.log_softmax(-1)
    divergences = [functional.kl_div(a, b, reduction="sum", log_target=True) for a, b in ((p, q), (q, p))]
    tgt_out = torch.tensor([3] * 6)
    torch.testing.assert_close(symmetric_kl(first, second, tgt_out, 0), (divergences[0] + divergences[1]) / 2)
    assert symmetric_kl(first, first, tgt_out, 0).item() == 0


def test_symmetric_kl_ignores_padding() -> None:
    first, second, tgt_out = torch.randn(4, 7), torch.randn(4, 7), torch.tensor([3, 0, 5, 0])
    real = torch.tensor([0, 2])
    torch.testing.assert_close(
        symmetric_kl(first, second, tgt_out, 0), symmetric_kl(first[real], second[real], tgt_out[real], 0)
    )
