import numpy as np
import pytest
import torch

from heed.model.attention import AttentionFn, attention_weights, fused_attention, plain_attention
from heed.model.layout import AttentionPattern, Packed, Padded

PATTERNS = {
    "bidirectional": AttentionPattern.between(
        *[Padded.from_mask(torch.tensor([[True] * 5, [True] * 3 + [False] * 2]))] * 2
    ),
    "causal": AttentionPattern.between(
        *[Padded.from_mask(torch.tensor([[True] * 5, [True] * 3 + [False] * 2]))] * 2, causal=True
    ),
    "packed": AttentionPattern.between(Packed.from_lengths([2, 4, 1]), Packed.from_lengths([3, 1, 5])),
    "packed-to-padded": AttentionPattern.between(
        Packed.from_lengths([2, 4]), Padded.from_mask(torch.ones(2, 3, dtype=torch.bool))
    ),
}


def heads(
    pattern: AttentionPattern, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q = torch.randn(*pattern.queries.positions.shape, 2, 8, dtype=dtype, requires_grad=True)
    k, v = (torch.randn(*pattern.keys.positions.shape, 2, 8, dtype=dtype, requires_grad=True) for _ in range(2))
    return q, k, v


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_fused_equals_plain_in_value_and_gradient(pattern: AttentionPattern) -> None:
    inputs = heads(pattern)
    fused, plain = (attend(*inputs, pattern, 0.0) for attend in (fused_attention, plain_attention))
    torch.testing.assert_close(fused, plain, rtol=0, atol=1e-12)
    direction = torch.randn_like(plain)
    for ours, theirs in zip(
        torch.autograd.grad(fused, inputs, direction), torch.autograd.grad(plain, inputs, direction), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_weights_sum_to_one_and_masked_weights_are_zero(pattern: AttentionPattern) -> None:
    q, k, _ = heads(pattern)
    weights = attention_weights(q, k, pattern)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    assert not weights.masked_select(~pattern.mask[:, None]).any()


def test_plain_attention_is_the_papers_equation_in_numpy() -> None:
    pattern = AttentionPattern.between(*[Padded.from_mask(torch.ones(1, 4, dtype=torch.bool))] * 2)
    q, k, v = heads(pattern)
    out = plain_attention(q, k, v, pattern, 0.0)
    for head in range(2):
        Q, K, V = (x.detach().numpy()[0, :, head] for x in (q, k, v))  # noqa: N806 - the paper's letters
        scores = Q @ K.T / np.sqrt(8)
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        np.testing.assert_allclose(out.detach().numpy()[0, :, head], weights @ V, atol=1e-12)


@pytest.mark.parametrize("attend", [fused_attention, plain_attention])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_fully_masked_query_returns_zeros_and_finite_gradients(
    attend: AttentionFn, dtype: torch.dtype, dropout: float, device: torch.device
) -> None:
    if dtype == torch.bfloat16 and device.type == "cpu":
        pytest.skip("bfloat16 matmuls crash on some CPUs that advertise instructions they lack; run with --device cuda")
    queries, keys = (Padded.from_mask(torch.ones(2, length, dtype=torch.bool, device=device)) for length in (3, 4))
    extra_mask = torch.ones(2, 3, 4, dtype=torch.bool, device=device)
    extra_mask[0] = extra_mask[1, 1] = False
    pattern = AttentionPattern.between(queries, keys, extra_mask=extra_mask)
    q, k, v = (x.detach().to(device).requires_grad_() for x in heads(pattern, dtype))
    out = attend(q, k, v, pattern, dropout)
    assert not out[0].any()
    assert not out[1, 1].any()
    out.float().square().sum().backward()
    for x in (out, q.grad, k.grad, v.grad):
        assert x is not None
        assert torch.isfinite(x).all()


def test_attention_dropout_keeps_the_mean_of_the_weights() -> None:
    pattern = AttentionPattern.between(*[Padded.from_mask(torch.ones(1, 500, dtype=torch.bool))] * 2)
    q, k, _ = heads(pattern)
    ones = torch.ones_like(k)
    out = plain_attention(q, k, ones, pattern, 0.25)
    assert out.std() > 0
    torch.testing.assert_close(out.mean(), torch.tensor(1.0, dtype=out.dtype), rtol=0, atol=0.02)
