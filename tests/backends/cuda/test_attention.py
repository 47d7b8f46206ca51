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
LENGTHS = [1, 40, 3, 70, 7, 1, 1, 15]  # tiles hold several of these, and one of these fills several tiles


def packed(device: torch.device, lengths: list[int]) -> Packed:
    return Packed.from_lengths(lengths).to(device)


def sights(device: torch.device) -> dict[str, AttentionPattern]:
    ours, theirs = packed(device, LENGTHS), packed(device, LENGTHS[::-1])
    return {
        "self": AttentionPattern.between(ours, ours),
        "causal": AttentionPattern.between(ours, ours, causal=True),
        "cross": AttentionPattern.between(ours, theirs),
    }


def vectors(
    pattern: AttentionPattern, width: int, device: torch.device, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    tokens = [len(layout.positions) for layout in (pattern.queries, pattern.keys, pattern.keys)]
    return [torch.randn(count, HEADS, width, device=device).to(dtype).requires_grad_() for count in tokens]


@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
@pytest.mark.parametrize("width", [8, 50, 64])
def test_packed_attention_equals_plain_in_value_and_gradient(kind: str, width: int, device: torch.device) -> None:
    pattern = sights(device)[kind]
    given = queries, keys, values = vectors(pattern, width, device)
    ours, plain = (attend(queries, keys, values, pattern, 0.0) for attend in (packed_attention, plain_attention))
    torch.testing.assert_close(ours, plain, atol=2e-5, rtol=1e-4)
    above = torch.randn_like(ours)
    for own, wanted in zip(
        torch.autograd.grad(ours, given, above), torch.autograd.grad(plain, given, above), strict=True
    ):
        torch.testing.assert_close(own, wanted, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
def test_dropout_takes_the_weights_its_hash_says_forward_and_back(kind: str, device: torch.device) -> None:
    pattern, rate, seed = sights(device)[kind], 0.3, 987_654_321
    given = vectors(pattern, 16, device)
    ours, theirs = pattern.queries, pattern.keys
    assert isinstance(ours, Packed)
    assert isinstance(theirs, Packed)
    layouts = (ours.sequence_ids, ours.cu_seqlens, theirs.sequence_ids, theirs.cu_seqlens)
    found, _ = _attend(*given, *layouts, torch.tensor([seed], device=device), kind == "causal", rate)

    queries, keys, values = given
    seen = ours.sequence_ids[:, None] == theirs.sequence_ids
    if kind == "causal":
        seen &= ours.positions[:, None] >= theirs.positions
    weights = (torch.einsum("thk,shk->hts", queries, keys) / math.sqrt(16)).masked_fill(~seen, -torch.inf).softmax(-1)
    gone = dropped(seed, HEADS, len(queries), len(keys), rate, device)
    wanted = torch.einsum("hts,shk->thk", weights.masked_fill(gone, 0.0) / (1 - rate), values)

    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-4)
    above = torch.randn_like(found)
    for own, other in zip(
        torch.autograd.grad(found, given, above), torch.autograd.grad(wanted, given, above), strict=True
    ):
        torch.testing.assert_close(own, other, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_takes_its_share_everywhere_and_another_one_for_another_seed(rate: float) -> None:
    one, other = (dropped(seed, 4, 200, 200, rate, torch.device("cpu")).float() for seed in (1, 2))
    assert abs(one.mean() - rate) < 0.01
    for axes in ((1, 2), (0, 2), (0, 1)):
        spread = one.mean(axes)
        expected = math.sqrt(rate * (1 - rate) / (one.numel() / len(spread)))
        assert (spread - rate).abs().max() < 5 * expected
    for lag in (1, 2, 64):  # neighbours know nothing of one another
        for a, b in ((one[..., lag:], one[..., :-lag]), (one[:, lag:], one[:, :-lag])):
            assert abs(torch.corrcoef(torch.stack((a.flatten(), b.flatten())))[0, 1]) < 0.01
    assert abs(torch.corrcoef(torch.stack((one.flatten(), other.flatten())))[0, 1]) < 0.01


def test_vectors_may_lie_in_larger_matrices(device: torch.device) -> None:
    pattern = sights(device)["self"]
    queries, keys, values = torch.randn(len(pattern.queries.positions), 3, HEADS, 16, device=device).unbind(1)
    apart = packed_attention(queries.contiguous(), keys.contiguous(), values.contiguous(), pattern, 0.0)
    torch.testing.assert_close(packed_attention(queries, keys, values, pattern, 0.0), apart)
    q, k, v = (one.transpose(0, 1).contiguous().transpose(0, 1) for one in (queries, keys, values))  # head by head
    torch.testing.assert_close(packed_attention(q, k, v, pattern, 0.0), apart)


@pytest.mark.usefixtures("unchecked_signatures")
def test_a_padded_layout_is_refused(device: torch.device) -> None:
    layout = Padded.from_ids(torch.tensor([[5, 6, 0]], device=device), 0)
    x = torch.randn(1, 3, HEADS, 16, device=device)
    with pytest.raises(InputError, match="packed attention needs packed queries and keys"):
        packed_attention(x, x, x, AttentionPattern.between(layout, layout), 0.0)
