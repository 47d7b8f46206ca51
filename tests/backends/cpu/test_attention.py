"""Attention in compiled code equals plain attention, forward and backward, for any lengths and memory layout."""

import math
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from heed.backends.cpu.attention import attention_with_seed, packed_attention
from heed.backends.cpu.dropout import DropoutStruct
from heed.backends.cpu.library import missing_for_compiled_code
from heed.errors import InputError
from heed.model.attention import plain_attention
from heed.model.layout import AttentionPattern, Packed, Padded
from tests.reference.dropout import dropped

pytestmark = pytest.mark.skipif(missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code()))

HEADS = 3
LENGTHS = [1, 40, 3, 70, 7, 1, 1, 15, 16, 32, 33]  # below, at and above the sizes of registers and blocks
QUERIES, KEYS = Packed.from_lengths(LENGTHS), Packed.from_lengths(LENGTHS[::-1])
PATTERNS = {
    "self": AttentionPattern.between(QUERIES, QUERIES),
    "causal": AttentionPattern.between(QUERIES, QUERIES, causal=True),
    "cross": AttentionPattern.between(QUERIES, KEYS),
}


QKV = tuple[Tensor, Tensor, Tensor]


def with_gradients(tensors: Iterable[Tensor]) -> QKV:
    queries, keys, values = (tensor.detach().requires_grad_() for tensor in tensors)
    return queries, keys, values


def random_qkv(width: int) -> QKV:
    return with_gradients(torch.randn(sum(LENGTHS), HEADS, width) for _ in range(3))


def assert_same_gradients(output: Tensor, expected_output: Tensor, inputs: QKV) -> None:
    grad_output = torch.randn_like(output)
    grads, expected_grads = (torch.autograd.grad(y, inputs, grad_output) for y in (output, expected_output))
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", PATTERNS)
@pytest.mark.parametrize("width", [1, 8, 16, 50, 64, 100])
def test_packed_attention_equals_plain_attention_in_value_and_gradient(kind: str, width: int) -> None:
    qkv = random_qkv(width)
    output, expected = (attention(*qkv, PATTERNS[kind], 0.0) for attention in (packed_attention, plain_attention))
    torch.testing.assert_close(output, expected, atol=2e-5, rtol=1e-4)
    assert_same_gradients(output, expected, qkv)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_attention_is_bit_identical_for_any_number_of_threads(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    qkv, grad_output = random_qkv(16), torch.randn(sum(LENGTHS), HEADS, 16)
    results = []
    for count in (1, threads):
        monkeypatch.setattr("heed.backends.cpu.attention.torch.get_num_threads", lambda count=count: count)
        output = packed_attention(*qkv, PATTERNS["causal"], 0.0)
        results.append([output, *torch.autograd.grad(output, qkv, grad_output)])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("kind", PATTERNS)
def test_dropout_drops_the_weights_that_its_hash_selects_forward_and_backward(kind: str) -> None:
    pattern, rate, seed = PATTERNS[kind], 0.3, 987_654_321
    qkv = queries, keys, values = random_qkv(16)
    output = attention_with_seed(*qkv, pattern, DropoutStruct.of(rate, seed))
    query_layout, key_layout = pattern.packed_sides()
    visible = query_layout.sequence_ids[:, None] == key_layout.sequence_ids
    if kind == "causal":
        visible &= query_layout.positions[:, None] >= key_layout.positions
    weights = (
        (torch.einsum("thk,shk->hts", queries, keys) / math.sqrt(16)).masked_fill(~visible, -torch.inf).softmax(-1)
    )
    mask = dropped(seed, HEADS, len(queries), len(keys), rate, torch.device("cpu"))
    expected = torch.einsum("hts,shk->thk", weights.masked_fill(mask, 0.0) / (1 - rate), values)
    torch.testing.assert_close(output, expected, atol=2e-5, rtol=1e-4)
    assert_same_gradients(output, expected, qkv)


def test_dropout_is_determined_by_torchs_seed() -> None:
    qkv, outputs = random_qkv(8), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(packed_attention(*qkv, PATTERNS["self"], 0.5))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_strided_inputs_and_gradients_give_the_same_result() -> None:
    pattern = PATTERNS["self"]
    together = torch.randn(sum(LENGTHS), 3, HEADS, 16)
    contiguous = with_gradients(tensor.contiguous() for tensor in together.unbind(1))
    expected = packed_attention(*contiguous, pattern, 0.0)
    head_by_head = [tensor.transpose(0, 1).contiguous().transpose(0, 1) for tensor in together.unbind(1)]
    for tensors in (list(together.unbind(1)), head_by_head):
        strided = with_gradients(tensors)
        output = packed_attention(*strided, pattern, 0.0)
        assert torch.equal(output, expected)
        grad_output = torch.randn(HEADS, sum(LENGTHS), 16).transpose(0, 1)
        for grad, expected_grad in zip(
            torch.autograd.grad(output, strided, grad_output),
            torch.autograd.grad(expected, contiguous, grad_output.contiguous(), retain_graph=True),
            strict=True,
        ):
            assert torch.equal(grad, expected_grad)


def test_large_scores_stay_finite_and_nan_stays_nan() -> None:
    queries, keys, values = (tensor.detach() for tensor in random_qkv(8))
    output, expected = (
        tensor(queries * 1e4, keys, values, PATTERNS["causal"], 0.0) for tensor in (packed_attention, plain_attention)
    )
    torch.testing.assert_close(output, expected, atol=2e-5, rtol=1e-4)
    keys[0] = torch.nan
    with_nan = packed_attention(queries, keys, values, PATTERNS["self"], 0.0)
    assert with_nan[0].isnan().all()
    assert with_nan[1:].isfinite().all()


@pytest.mark.usefixtures("unchecked_signatures")
def test_a_padded_layout_is_refused() -> None:
    layout = Padded.from_ids(torch.tensor([[5, 6, 0]]), 0)
    x = torch.randn(1, 3, HEADS, 16)
    with pytest.raises(InputError, match="packed attention needs packed queries and keys"):
        packed_attention(x, x, x, AttentionPattern.between(layout, layout), 0.0)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("kind", PATTERNS)
def test_packed_attention_equals_plain_attention_on_every_instruction_set(kind: str) -> None:
    for width in (12, 64):
        qkv = random_qkv(width)
        output, expected = (attention(*qkv, PATTERNS[kind], 0.0) for attention in (packed_attention, plain_attention))
        torch.testing.assert_close(output, expected, atol=2e-5, rtol=1e-4)
        assert_same_gradients(output, expected, qkv)
