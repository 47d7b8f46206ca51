import math

import pytest
import torch
from torch import Tensor

from heed.backends.cuda.attention import _attend, packed_attention
from heed.errors import InputError
from heed.model.attention import plain_attention
from heed.model.layout import AttentionPattern, Packed, Padded
from tests.reference.dropout import dropped

HEADS = 3
LENGTHS = [1, 40, 3, 70, 7, 1, 1, 15]  # a tile holds several sentences; the longest fills several tiles


def packed(device: torch.device, lengths: list[int]) -> Packed:
    return Packed.from_lengths(lengths).to(device)


def patterns(device: torch.device) -> dict[str, AttentionPattern]:
    query_layout, key_layout = packed(device, LENGTHS), packed(device, LENGTHS[::-1])
    return {
        "self": AttentionPattern.between(query_layout, query_layout),
        "causal": AttentionPattern.between(query_layout, query_layout, causal=True),
        "cross": AttentionPattern.between(query_layout, key_layout),
    }


def random_qkv(
    pattern: AttentionPattern, width: int, device: torch.device, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    tokens = [len(layout.positions) for layout in (pattern.queries, pattern.keys, pattern.keys)]
    return [torch.randn(count, HEADS, width, device=device).to(dtype).requires_grad_() for count in tokens]


@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
@pytest.mark.parametrize("width", [8, 50, 64])
def test_packed_attention_equals_plain_in_value_and_gradient(kind: str, width: int, device: torch.device) -> None:
    pattern = patterns(device)[kind]
    qkv = queries, keys, values = random_qkv(pattern, width, device)
    output, expected = (attend(queries, keys, values, pattern, 0.0) for attend in (packed_attention, plain_attention))
    torch.testing.assert_close(output, expected, atol=2e-5, rtol=1e-4)
    grad_output = torch.randn_like(output)
    for grad, expected_grad in zip(
        torch.autograd.grad(output, qkv, grad_output), torch.autograd.grad(expected, qkv, grad_output), strict=True
    ):
        torch.testing.assert_close(grad, expected_grad, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
def test_dropout_drops_the_weights_that_its_hash_selects_forward_and_backward(kind: str, device: torch.device) -> None:
    pattern, rate, seed = patterns(device)[kind], 0.3, 987_654_321
    qkv = random_qkv(pattern, 16, device)
    query_layout, key_layout = pattern.queries, pattern.keys
    assert isinstance(query_layout, Packed)
    assert isinstance(key_layout, Packed)
    layouts = (query_layout.sequence_ids, query_layout.cu_seqlens, key_layout.sequence_ids, key_layout.cu_seqlens)
    output, _ = _attend(*qkv, *layouts, torch.tensor([seed], device=device), kind == "causal", rate)

    queries, keys, values = qkv
    visible = query_layout.sequence_ids[:, None] == key_layout.sequence_ids
    if kind == "causal":
        visible &= query_layout.positions[:, None] >= key_layout.positions
    weights = (
        (torch.einsum("thk,shk->hts", queries, keys) / math.sqrt(16)).masked_fill(~visible, -torch.inf).softmax(-1)
    )
    mask = dropped(seed, HEADS, len(queries), len(keys), rate, device)
    expected = torch.einsum("hts,shk->thk", weights.masked_fill(mask, 0.0) / (1 - rate), values)

    torch.testing.assert_close(output, expected, atol=2e-5, rtol=1e-4)
    grad_output = torch.randn_like(output)
    for grad, expected_grad in zip(
        torch.autograd.grad(output, qkv, grad_output), torch.autograd.grad(expected, qkv, grad_output), strict=True
    ):
        torch.testing.assert_close(grad, expected_grad, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_masks_have_the_right_rate_and_are_uncorrelated_between_positions_and_seeds(rate: float) -> None:
    mask, other_mask = (dropped(seed, 4, 200, 200, rate, torch.device("cpu")).float() for seed in (1, 2))
    assert abs(mask.mean() - rate) < 0.01
    for axes in ((1, 2), (0, 2), (0, 1)):
        rates = mask.mean(axes)
        deviation = math.sqrt(rate * (1 - rate) / (mask.numel() / len(rates)))
        assert (rates - rate).abs().max() < 5 * deviation
    for lag in (1, 2, 64):  # neighbours are uncorrelated
        for a, b in ((mask[..., lag:], mask[..., :-lag]), (mask[:, lag:], mask[:, :-lag])):
            assert abs(torch.corrcoef(torch.stack((a.flatten(), b.flatten())))[0, 1]) < 0.01
    assert abs(torch.corrcoef(torch.stack((mask.flatten(), other_mask.flatten())))[0, 1]) < 0.01


def test_strided_inputs_give_the_same_result(device: torch.device) -> None:
    pattern = patterns(device)["self"]
    queries, keys, values = torch.randn(len(pattern.queries.positions), 3, HEADS, 16, device=device).unbind(1)
    expected = packed_attention(queries.contiguous(), keys.contiguous(), values.contiguous(), pattern, 0.0)
    torch.testing.assert_close(packed_attention(queries, keys, values, pattern, 0.0), expected)
    # In memory head by head.
    q, k, v = (tensor.transpose(0, 1).contiguous().transpose(0, 1) for tensor in (queries, keys, values))
    torch.testing.assert_close(packed_attention(q, k, v, pattern, 0.0), expected)


@pytest.mark.usefixtures("unchecked_signatures")
def test_a_padded_layout_is_refused(device: torch.device) -> None:
    layout = Padded.from_ids(torch.tensor([[5, 6, 0]], device=device), 0)
    x = torch.randn(1, 3, HEADS, 16, device=device)
    with pytest.raises(InputError, match="packed attention needs packed queries and keys"):
        packed_attention(x, x, x, AttentionPattern.between(layout, layout), 0.0)
