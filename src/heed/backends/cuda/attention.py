"""Attention between packed sequences on a GPU, with its backward pass; self-attention also straight from fused QKV."""

import math
from typing import TypeAlias

import torch
import triton
from jaxtyping import Float
from torch import Tensor

from heed.backends.base import dropout_threshold
from heed.backends.cuda.triton import attention as programs
from heed.model.layout import AttentionPattern

# Queries and keys per tile, tuned on an H200: sequences are short, and the backward pass needs many registers.
_TILE = {"BLOCK_M": 64, "BLOCK_N": 32, "num_stages": 2}
_TILE_OF_KEYS = {"BLOCK_M": 32, "BLOCK_N": 64, "num_stages": 2}

QKV: TypeAlias = tuple[Tensor, Tensor, Tensor]  # queries, keys and values, or their gradients


def packed_attention(
    queries: Float[Tensor, "targets H K"],
    keys: Float[Tensor, "sources H K"],
    values: Float[Tensor, "sources H K"],
    pattern: AttentionPattern,
    dropout: float,
) -> Float[Tensor, "targets H K"]:
    """Attention in tiles, as FlashAttention: the weights are never all in memory."""
    query_layout, key_layout = pattern.packed_sides()
    seed = torch.randint(2**31, (1,), device=queries.device) if dropout else query_layout.cu_seqlens
    attend = _attend if queries.requires_grad or torch.compiler.is_compiling() else attention_forward
    heads, _ = attend(
        queries,
        keys,
        values,
        query_layout.sequence_ids,
        query_layout.cu_seqlens,
        key_layout.sequence_ids,
        key_layout.cu_seqlens,
        seed,
        pattern.causal,
        dropout,
    )
    return heads


def attention_forward(  # noqa: PLR0913, PLR0917 - an operator takes tensors, not values made of them
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    sequence_ids: Tensor,
    cu_seqlens: Tensor,
    key_sequence_ids: Tensor,  # noqa: ARG001 - for the backward pass
    key_cu_seqlens: Tensor,
    seed: Tensor,
    causal: bool,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """The output of attention, and the log2-sum-exp of each query's scores, which the backward pass needs."""
    queries, keys, values = (_contiguous_heads(x) for x in (queries, keys, values))
    count, heads, width = queries.shape
    # Not empty_like: the output is contiguous, whatever the strides of the queries.
    output = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
    log_sums = torch.empty(heads, count, dtype=torch.float32, device=queries.device)
    programs.forward[(triton.cdiv(count, _TILE["BLOCK_M"]), heads)](
        queries, keys, values, output, log_sums, sequence_ids, cu_seqlens, key_cu_seqlens, seed,
        *_strides(queries, keys, values), count, heads, 1 / math.sqrt(width),
        dropout_threshold(dropout), 1 / (1 - dropout),
        **_constants(queries, causal, dropout), **_TILE,
    )  # fmt: skip
    return output, log_sums


# As an operator it has a gradient and can be compiled; where neither is needed, dispatch would take longer than it.
_attend = torch.library.custom_op("heed::packed_attention", attention_forward, mutates_args=())


@torch.library.custom_op("heed::packed_attention_backward", mutates_args=())
def _attend_backward(  # noqa: PLR0913, PLR0917
    grad_out: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    output: Tensor,
    log_sums: Tensor,
    sequence_ids: Tensor,
    cu_seqlens: Tensor,
    key_sequence_ids: Tensor,
    key_cu_seqlens: Tensor,
    seed: Tensor,
    causal: bool,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values."""
    gradients = queries.new_empty(queries.shape), keys.new_empty(keys.shape), keys.new_empty(keys.shape)
    sides = (sequence_ids, cu_seqlens, key_sequence_ids, key_cu_seqlens)
    write_gradients(gradients, grad_out, (queries, keys, values), (output, log_sums), sides, seed, causal, dropout)
    return gradients


def write_gradients(
    gradients: QKV,
    grad_out: Tensor,
    tensors_qkv: QKV,
    results: tuple[Tensor, Tensor],
    sides: tuple[Tensor, Tensor, Tensor, Tensor],
    seed: Tensor,
    causal: bool,
    dropout: float,
) -> None:
    """Write the gradients of queries, keys and values into `gradients`, which share one stride between tokens.

    results: of `attention_forward`. sides: sequence ids and cu_seqlens of the queries, then of the keys.
    """
    grad_q, grad_k, grad_v = gradients
    (output, log_sums), (sequence_ids, cu_seqlens, key_sequence_ids, key_cu_seqlens) = results, sides
    queries, keys, values, grad_out = (_contiguous_heads(x) for x in (*tensors_qkv, grad_out.contiguous()))
    count, heads, width = queries.shape
    deltas = torch.empty_like(log_sums)
    scalars = (heads, 1 / math.sqrt(width), dropout_threshold(dropout), 1 / (1 - dropout))
    constants = _constants(queries, causal, dropout)
    strides = (*_strides(queries, keys, values), grad_q.stride(0))
    programs.backward_queries[(triton.cdiv(count, _TILE["BLOCK_M"]), heads)](
        queries, keys, values, output, grad_out, grad_q, log_sums, deltas, sequence_ids, cu_seqlens, key_cu_seqlens,
        seed,
        *strides, count, *scalars, **constants, **_TILE,
    )  # fmt: skip
    programs.backward_keys[(triton.cdiv(len(keys), _TILE_OF_KEYS["BLOCK_N"]), heads)](
        queries, keys, values, grad_out, grad_k, grad_v, log_sums, deltas, key_sequence_ids, key_cu_seqlens,
        cu_seqlens, seed,
        *strides, count, len(keys), *scalars, **constants, **_TILE_OF_KEYS,
    )  # fmt: skip


@_attend.register_fake
def _(queries: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    count, heads, _width = queries.shape
    return queries.new_empty(queries.shape), queries.new_empty((heads, count), dtype=torch.float32)


@_attend_backward.register_fake
def _(_grad_out: Tensor, queries: Tensor, keys: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    return queries.new_empty(queries.shape), keys.new_empty(keys.shape), keys.new_empty(keys.shape)


def _save_for_backward(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    *tensors, ctx.causal, ctx.dropout = inputs
    ctx.save_for_backward(*tensors[:3], *output, *tensors[3:])


def _backward(ctx, grad_out: Tensor, _log_sums: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
    gradients = _attend_backward(grad_out, *ctx.saved_tensors, ctx.causal, ctx.dropout)
    return *gradients, *(None,) * 7


_attend.register_autograd(_backward, setup_context=_save_for_backward)


def _contiguous_heads(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _strides(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[int, ...]:
    return tuple(x.stride(axis) for x in (queries, keys, values) for axis in (0, 1))


def _constants(queries: Tensor, causal: bool, dropout: float) -> dict[str, object]:
    width = queries.shape[-1]
    return {
        "HEAD_DIM": width,
        "BLOCK_D": max(16, triton.next_power_of_2(width)),
        "CAUSAL": causal,
        "DROPOUT": dropout > 0,
        "PRECISION": "ieee" if queries.dtype == torch.float32 else "tf32",
    }


def packed_self_attention(
    qkv: Float[Tensor, "tokens 3 H K"], pattern: AttentionPattern, dropout: float
) -> Float[Tensor, "tokens H K"]:
    """Self-attention within packed sequences, from queries, keys and values stacked in this order for every token."""
    sequences, _ = pattern.packed_sides()
    seed = torch.randint(2**31, (1,), device=qkv.device) if dropout else sequences.cu_seqlens
    heads, _log_sums = _attend_qkv(qkv, sequences.sequence_ids, sequences.cu_seqlens, seed, pattern.causal, dropout)
    return heads


@torch.library.custom_op("heed::packed_self_attention", mutates_args=())
def _attend_qkv(
    qkv: Tensor, sequence_ids: Tensor, cu_seqlens: Tensor, seed: Tensor, causal: bool, dropout: float
) -> tuple[Tensor, Tensor]:
    queries, keys, values = qkv.unbind(1)
    return attention_forward(
        queries, keys, values, sequence_ids, cu_seqlens, sequence_ids, cu_seqlens, seed, causal, dropout
    )


@torch.library.custom_op("heed::packed_self_attention_backward", mutates_args=())
def _attend_qkv_backward(  # noqa: PLR0913, PLR0917 - an operator takes tensors, not values made of them
    grad_out: Tensor,
    qkv: Tensor,
    output: Tensor,
    log_sums: Tensor,
    sequence_ids: Tensor,
    cu_seqlens: Tensor,
    seed: Tensor,
    causal: bool,
    dropout: float,
) -> Tensor:
    queries, keys, values = qkv.unbind(1)
    grad_qkv = qkv.new_empty(qkv.shape)
    grad_q, grad_k, grad_v = grad_qkv.unbind(1)
    gradients, sides = (grad_q, grad_k, grad_v), (sequence_ids, cu_seqlens, sequence_ids, cu_seqlens)
    write_gradients(gradients, grad_out, (queries, keys, values), (output, log_sums), sides, seed, causal, dropout)
    return grad_qkv


@_attend_qkv.register_fake
def _(qkv: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    count, _qkv, heads, width = qkv.shape
    return qkv.new_empty((count, heads, width)), qkv.new_empty((heads, count), dtype=torch.float32)


@_attend_qkv_backward.register_fake
def _(_grad_out: Tensor, qkv: Tensor, *_: object) -> Tensor:
    return qkv.new_empty(qkv.shape)


def _save_qkv(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    qkv, *tensors, ctx.causal, ctx.dropout = inputs
    ctx.save_for_backward(qkv, *output, *tensors)


def _qkv_backward(ctx, grad_out: Tensor, _log_sums: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
    return _attend_qkv_backward(grad_out, *ctx.saved_tensors, ctx.causal, ctx.dropout), *(None,) * 5


_attend_qkv.register_autograd(_qkv_backward, setup_context=_save_qkv)
