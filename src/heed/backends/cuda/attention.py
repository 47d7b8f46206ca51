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

# Queries and keys of a tile, found by trying on an H200: sentences are short, and the way back needs many registers.
_TILE = {"ROWS": 64, "COLUMNS": 32, "num_stages": 2}
_TILE_OF_KEYS = {"ROWS": 32, "COLUMNS": 64, "num_stages": 2}

Three: TypeAlias = tuple[Tensor, Tensor, Tensor]  # queries, keys and values, or their gradients


def packed_attention(
    queries: Float[Tensor, "targets H K"],
    keys: Float[Tensor, "sources H K"],
    values: Float[Tensor, "sources H K"],
    pattern: AttentionPattern,
    dropout: float,
) -> Float[Tensor, "targets H K"]:
    """Attention between packed sentences, on a GPU."""
    ours, theirs = pattern.packed_sides()
    seed = torch.randint(2**31, (1,), device=queries.device) if dropout else ours.cu_seqlens
    attend = _attend if queries.requires_grad or torch.compiler.is_compiling() else gathered_and_sums
    heads, _ = attend(
        queries,
        keys,
        values,
        ours.sequence_ids,
        ours.cu_seqlens,
        theirs.sequence_ids,
        theirs.cu_seqlens,
        seed,
        pattern.causal,
        dropout,
    )
    return heads


def gathered_and_sums(  # noqa: PLR0913, PLR0917 - an operator takes tensors, not values made of them
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    owners: Tensor,
    offsets: Tensor,
    key_owners: Tensor,  # noqa: ARG001 - for the way back
    key_offsets: Tensor,
    seed: Tensor,
    causal: bool,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """What each query gathers, and the logarithm (to base 2) of the sum that its weights were divided by."""
    queries, keys, values = (_rows(x) for x in (queries, keys, values))
    count, heads, width = queries.shape
    gathered = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)  # whole, however queries lie
    sums = torch.empty(heads, count, dtype=torch.float32, device=queries.device)
    programs.forward[(triton.cdiv(count, _TILE["ROWS"]), heads)](
        queries, keys, values, gathered, sums, owners, offsets, key_offsets, seed,
        *_strides(queries, keys, values), count, heads, 1 / math.sqrt(width),
        dropout_threshold(dropout), 1 / (1 - dropout),
        **_constants(queries, causal, dropout), **_TILE,
    )  # fmt: skip
    return gathered, sums


# An operator has a gradient and can be compiled; where neither is needed, asking for one takes longer than its work.
_attend = torch.library.custom_op("heed::packed_attention", gathered_and_sums, mutates_args=())


@torch.library.custom_op("heed::packed_attention_backward", mutates_args=())
def _attend_back(  # noqa: PLR0913, PLR0917
    above: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    gathered: Tensor,
    sums: Tensor,
    owners: Tensor,
    offsets: Tensor,
    key_owners: Tensor,
    key_offsets: Tensor,
    seed: Tensor,
    causal: bool,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values."""
    gradients = queries.new_empty(queries.shape), keys.new_empty(keys.shape), keys.new_empty(keys.shape)
    sides = (owners, offsets, key_owners, key_offsets)
    put_gradients(gradients, above, (queries, keys, values), (gathered, sums), sides, seed, causal, dropout)
    return gradients


def put_gradients(
    gradients: Three,
    above: Tensor,
    vectors: Three,
    found: tuple[Tensor, Tensor],
    sides: tuple[Tensor, Tensor, Tensor, Tensor],
    seed: Tensor,
    causal: bool,
    dropout: float,
) -> None:
    """Those of queries, keys and values, to where they belong: all with the same step from token to token.

    found: by `gathered_and_sums`. sides: owners and offsets of the queries, and of the keys.
    """
    by_queries, by_keys, by_values = gradients
    (gathered, sums), (owners, offsets, key_owners, key_offsets) = found, sides
    queries, keys, values, above = (_rows(x) for x in (*vectors, above.contiguous()))
    count, heads, width = queries.shape
    products = torch.empty_like(sums)
    numbers = (heads, 1 / math.sqrt(width), dropout_threshold(dropout), 1 / (1 - dropout))
    constants = _constants(queries, causal, dropout)
    strides = (*_strides(queries, keys, values), by_queries.stride(0))
    programs.backward_queries[(triton.cdiv(count, _TILE["ROWS"]), heads)](
        queries, keys, values, gathered, above, by_queries, sums, products, owners, offsets, key_offsets, seed,
        *strides, count, *numbers, **constants, **_TILE,
    )  # fmt: skip
    programs.backward_keys[(triton.cdiv(len(keys), _TILE_OF_KEYS["COLUMNS"]), heads)](
        queries, keys, values, above, by_keys, by_values, sums, products, key_owners, key_offsets, offsets, seed,
        *strides, count, len(keys), *numbers, **constants, **_TILE_OF_KEYS,
    )  # fmt: skip


@_attend.register_fake
def _(queries: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    count, heads, _width = queries.shape
    return queries.new_empty(queries.shape), queries.new_empty((heads, count), dtype=torch.float32)


@_attend_back.register_fake
def _(_above: Tensor, queries: Tensor, keys: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    return queries.new_empty(queries.shape), keys.new_empty(keys.shape), keys.new_empty(keys.shape)


def _remember(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    *tensors, ctx.causal, ctx.dropout = inputs
    ctx.save_for_backward(*tensors[:3], *output, *tensors[3:])


def _back(ctx, above: Tensor, _sums: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
    gradients = _attend_back(above, *ctx.saved_tensors, ctx.causal, ctx.dropout)
    return *gradients, *(None,) * 7


_attend.register_autograd(_back, setup_context=_remember)


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _strides(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[int, ...]:
    return tuple(x.stride(axis) for x in (queries, keys, values) for axis in (0, 1))


def _constants(queries: Tensor, causal: bool, dropout: float) -> dict[str, object]:
    width = queries.shape[-1]
    return {
        "WIDTH": width,
        "ROOM": max(16, triton.next_power_of_2(width)),
        "CAUSAL": causal,
        "DROP": dropout > 0,
        "PRECISION": "ieee" if queries.dtype == torch.float32 else "tf32",
    }


def packed_self_attention(
    three: Float[Tensor, "tokens 3 H K"], pattern: AttentionPattern, dropout: float
) -> Float[Tensor, "tokens H K"]:
    """Attention within packed sentences, on a GPU. Queries, keys and values, in this order, of every token."""
    own, _ = pattern.packed_sides()
    seed = torch.randint(2**31, (1,), device=three.device) if dropout else own.cu_seqlens
    heads, _sums = _attend_qkv(three, own.sequence_ids, own.cu_seqlens, seed, pattern.causal, dropout)
    return heads


@torch.library.custom_op("heed::packed_self_attention", mutates_args=())
def _attend_qkv(
    three: Tensor, owners: Tensor, offsets: Tensor, seed: Tensor, causal: bool, dropout: float
) -> tuple[Tensor, Tensor]:
    queries, keys, values = three.unbind(1)
    return gathered_and_sums(queries, keys, values, owners, offsets, owners, offsets, seed, causal, dropout)


@torch.library.custom_op("heed::packed_self_attention_backward", mutates_args=())
def _attend_qkv_backward(  # noqa: PLR0913, PLR0917 - an operator takes tensors, not values made of them
    above: Tensor,
    three: Tensor,
    gathered: Tensor,
    sums: Tensor,
    owners: Tensor,
    offsets: Tensor,
    seed: Tensor,
    causal: bool,
    dropout: float,
) -> Tensor:
    queries, keys, values = three.unbind(1)
    by_three = three.new_empty(three.shape)
    by_queries, by_keys, by_values = by_three.unbind(1)
    gradients, sides = (by_queries, by_keys, by_values), (owners, offsets, owners, offsets)
    put_gradients(gradients, above, (queries, keys, values), (gathered, sums), sides, seed, causal, dropout)
    return by_three


@_attend_qkv.register_fake
def _(three: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    count, _three, heads, width = three.shape
    return three.new_empty((count, heads, width)), three.new_empty((heads, count), dtype=torch.float32)


@_attend_qkv_backward.register_fake
def _(_above: Tensor, three: Tensor, *_: object) -> Tensor:
    return three.new_empty(three.shape)


def _save_qkv(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    three, *tensors, ctx.causal, ctx.dropout = inputs
    ctx.save_for_backward(three, *output, *tensors)


def _qkv_backward(ctx, above: Tensor, _sums: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
    return _attend_qkv_backward(above, *ctx.saved_tensors, ctx.causal, ctx.dropout), *(None,) * 5


_attend_qkv.register_autograd(_qkv_backward, setup_context=_save_qkv)
