"""Attention in compiled code is the plain one, forward and back, however sentences and vectors lie."""

import math
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from heed.backends.cpu.attention import attention as native_attention_with_seed
from heed.backends.cpu.attention import native_attention
from heed.backends.cpu.dropout import DropoutStruct
from heed.backends.cpu.library import missing_for_compiled_code
from heed.errors import InputError
from heed.model.attention import plain_attention
from heed.model.layout import AttentionPattern, Packed, Padded
from tests.reference.dropout import dropped

pytestmark = pytest.mark.skipif(missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code()))

HEADS = 3
LENGTHS = [1, 40, 3, 70, 7, 1, 1, 15, 16, 32, 33]  # some take several turns, some fill registers and turns exactly
OURS, THEIRS = Packed.from_lengths(LENGTHS), Packed.from_lengths(LENGTHS[::-1])
PATTERNS = {
    "self": AttentionPattern.between(OURS, OURS),
    "causal": AttentionPattern.between(OURS, OURS, causal=True),
    "cross": AttentionPattern.between(OURS, THEIRS),
}


Three = tuple[Tensor, Tensor, Tensor]


def to_learn(some: Iterable[Tensor]) -> Three:
    queries, keys, values = (one.detach().requires_grad_() for one in some)
    return queries, keys, values


def vectors(width: int) -> Three:
    return to_learn(torch.randn(sum(LENGTHS), HEADS, width) for _ in range(3))


def check_gradients(ours: Tensor, plain: Tensor, given: Three) -> None:
    above = torch.randn_like(ours)
    found, wanted = (torch.autograd.grad(one, given, above) for one in (ours, plain))
    for own, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(own, other, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", PATTERNS)
@pytest.mark.parametrize("width", [1, 8, 16, 50, 64, 100])
def test_it_equals_plain_attention_in_value_and_gradient(kind: str, width: int) -> None:
    given = vectors(width)
    ours, plain = (one(*given, PATTERNS[kind], 0.0) for one in (native_attention, plain_attention))
    torch.testing.assert_close(ours, plain, atol=2e-5, rtol=1e-4)
    check_gradients(ours, plain, given)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_any_number_of_threads_finds_the_same_to_the_last_bit(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given, above = vectors(16), torch.randn(sum(LENGTHS), HEADS, 16)
    found = []
    for count in (1, threads):
        monkeypatch.setattr("heed.backends.cpu.attention.torch.get_num_threads", lambda count=count: count)
        heads = native_attention(*given, PATTERNS["causal"], 0.0)
        found.append([heads, *torch.autograd.grad(heads, given, above)])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


@pytest.mark.parametrize("kind", PATTERNS)
def test_dropout_takes_the_weights_its_hash_says_forward_and_back(kind: str) -> None:
    pattern, rate, seed = PATTERNS[kind], 0.3, 987_654_321
    given = queries, keys, values = vectors(16)
    found = native_attention_with_seed(*given, pattern, DropoutStruct.of(rate, seed))
    ours, theirs = pattern.packed_sides()
    seen = ours.sequence_ids[:, None] == theirs.sequence_ids
    if kind == "causal":
        seen &= ours.positions[:, None] >= theirs.positions
    weights = (torch.einsum("thk,shk->hts", queries, keys) / math.sqrt(16)).masked_fill(~seen, -torch.inf).softmax(-1)
    gone = dropped(seed, HEADS, len(queries), len(keys), rate, torch.device("cpu"))
    wanted = torch.einsum("hts,shk->thk", weights.masked_fill(gone, 0.0) / (1 - rate), values)
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-4)
    check_gradients(found, wanted, given)


def test_dropout_follows_from_torchs_seed() -> None:
    given, found = vectors(8), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(native_attention(*given, PATTERNS["self"], 0.5))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_vectors_and_gradients_may_lie_in_larger_matrices() -> None:
    pattern = PATTERNS["self"]
    together = torch.randn(sum(LENGTHS), 3, HEADS, 16)
    apart = to_learn(one.contiguous() for one in together.unbind(1))
    wanted = native_attention(*apart, pattern, 0.0)
    head_by_head = [one.transpose(0, 1).contiguous().transpose(0, 1) for one in together.unbind(1)]
    for lying in (list(together.unbind(1)), head_by_head):
        given = to_learn(lying)
        found = native_attention(*given, pattern, 0.0)
        assert torch.equal(found, wanted)
        above = torch.randn(HEADS, sum(LENGTHS), 16).transpose(0, 1)
        for own, other in zip(
            torch.autograd.grad(found, given, above),
            torch.autograd.grad(wanted, apart, above.contiguous(), retain_graph=True),
            strict=True,
        ):
            assert torch.equal(own, other)


def test_large_scores_stay_finite_and_nan_stays_nan() -> None:
    queries, keys, values = (one.detach() for one in vectors(8))
    ours, plain = (
        one(queries * 1e4, keys, values, PATTERNS["causal"], 0.0) for one in (native_attention, plain_attention)
    )
    torch.testing.assert_close(ours, plain, atol=2e-5, rtol=1e-4)
    keys[0] = torch.nan
    found = native_attention(queries, keys, values, PATTERNS["self"], 0.0)
    assert found[0].isnan().all()
    assert found[1:].isfinite().all()


@pytest.mark.usefixtures("unchecked_signatures")
def test_a_padded_layout_is_refused() -> None:
    layout = Padded.from_ids(torch.tensor([[5, 6, 0]]), 0)
    x = torch.randn(1, 3, HEADS, 16)
    with pytest.raises(InputError, match="packed attention needs packed queries and keys"):
        native_attention(x, x, x, AttentionPattern.between(layout, layout), 0.0)


@pytest.mark.usefixtures("for_avx2")
@pytest.mark.parametrize("kind", PATTERNS)
def test_processors_without_avx512_attend_the_same(kind: str) -> None:
    for width in (12, 64):
        given = vectors(width)
        ours, plain = (one(*given, PATTERNS[kind], 0.0) for one in (native_attention, plain_attention))
        torch.testing.assert_close(ours, plain, atol=2e-5, rtol=1e-4)
        check_gradients(ours, plain, given)
