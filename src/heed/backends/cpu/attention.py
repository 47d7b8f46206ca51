"""Attention between packed sentences for training on a CPU: `csrc/attention.h` from Python, with its backward pass.

It needs no padding, no mask tensor, and never a weight matrix larger than a block of queries. The references are
`plain_attention` and `fused_attention`, which have the same signature; dropout is the hash of `csrc/dropout.h`.
"""

import ctypes
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor

from heed.backends.cpu.dropout import DropoutStruct, draw_seed
from heed.backends.cpu.library import check_status, engine, team_of_torch
from heed.backends.cpu.pointers import pointer, strided_pointer
from heed.model.layout import AttentionPattern, Packed

_address, _integer = ctypes.c_void_p, ctypes.c_int64


class _RowsStruct(ctypes.Structure):
    _fields_: ClassVar = [("data", _address), ("stride", _integer)]

    @classmethod
    def of(cls, x: Float[Tensor, "tokens H K"] | None, shape: tuple[int, int, int]) -> "_RowsStruct":
        if x is None:
            return cls()
        if (shape[1] > 1 and x.stride(1) != shape[2]) or (shape[2] > 1 and x.stride(2) != 1):
            raise TypeError(f"compiled attention takes contiguous heads, found strides {x.stride()}")
        return cls(strided_pointer(x, torch.float32, *shape), x.stride(0))


class _AttentionStruct(ctypes.Structure):
    _fields_: ClassVar = [
        *((name, _RowsStruct) for name in ("queries", "keys", "values", "output")),
        *((name, _RowsStruct) for name in ("grad_output", "grad_queries", "grad_keys", "grad_values")),
        *((name, _address) for name in ("cu_seqlens", "key_cu_seqlens")),
        *((name, _integer) for name in ("tokens", "key_tokens")),
        *((name, _integer) for name in ("sentences", "heads", "head_width", "max_keys", "causal")),
        ("dropout", DropoutStruct),
    ]


def packed_attention(
    queries: Float[Tensor, "targets H K"],
    keys: Float[Tensor, "sources H K"],
    values: Float[Tensor, "sources H K"],
    pattern: AttentionPattern,
    dropout: float,
) -> Float[Tensor, "targets H K"]:
    """Attention between packed sentences, on a CPU; the dropout seed comes from torch's generator."""
    return attention_with_seed(queries, keys, values, pattern, DropoutStruct.of(dropout, draw_seed() if dropout else 0))


def attention_with_seed(
    queries: Tensor, keys: Tensor, values: Tensor, pattern: AttentionPattern, dropout: DropoutStruct
) -> Tensor:
    """Attention between packed sentences, on a CPU, with a given dropout seed."""
    query_layout, key_layout = pattern.packed_sides()
    return _Attention.apply(queries, keys, values, query_layout, key_layout, pattern.causal, dropout)  # type: ignore[no-untyped-call]


def packed_self_attention(
    qkv: Float[Tensor, "tokens 3 H K"], pattern: AttentionPattern, dropout: float
) -> Float[Tensor, "tokens H K"]:
    """Self-attention of packed sentences, from queries, keys and values stacked in this order for every token."""
    layout, _ = pattern.packed_sides()
    seeded = DropoutStruct.of(dropout, draw_seed() if dropout else 0)
    return _SelfAttention.apply(qkv, layout, pattern.causal, seeded)  # type: ignore[no-untyped-call]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        query_layout: Packed,
        key_layout: Packed,
        causal: bool,
        dropout: DropoutStruct,
    ) -> Tensor:
        inputs = [_contiguous_heads(x) for x in (queries, keys, values)]
        output = torch.empty(queries.shape, dtype=torch.float32, device="cpu")
        ctx.save_for_backward(*inputs)
        ctx.settings = (query_layout, key_layout, causal, dropout)
        _run([*inputs, output, *(None,) * 4], *ctx.settings)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        gradients = [torch.empty(x.shape, dtype=torch.float32, device="cpu") for x in inputs]
        _run([*inputs, None, _contiguous_heads(grad_output), *gradients], *ctx.settings)
        return *gradients, *(None,) * 4


class _SelfAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, layout: Packed, causal: bool, dropout: DropoutStruct) -> Tensor:
        tokens, _, heads, head_width = qkv.shape
        output = torch.empty(tokens, heads, head_width, dtype=torch.float32, device="cpu")
        ctx.save_for_backward(qkv)
        ctx.settings = (layout, layout, causal, dropout)
        _run([*qkv.unbind(1), output, *(None,) * 4], *ctx.settings)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        (qkv,) = ctx.saved_tensors
        gradient = torch.empty(qkv.shape, dtype=torch.float32, device="cpu")
        _run([*qkv.unbind(1), None, _contiguous_heads(grad_output), *gradient.unbind(1)], *ctx.settings)
        return gradient, None, None, None


def _contiguous_heads(x: Float[Tensor, "tokens H K"]) -> Float[Tensor, "tokens H K"]:
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


def _run(
    tensors: list[Tensor | None], query_layout: Packed, key_layout: Packed, causal: bool, dropout: DropoutStruct
) -> None:
    """Forward or backward pass; tensors: the first eight fields of the structure, None where a pass has none."""
    tokens, heads, head_width = cast("Tensor", tensors[0]).shape
    key_tokens, sentences = len(cast("Tensor", tensors[1])), len(query_layout.cu_seqlens) - 1
    counts = (tokens, key_tokens, key_tokens, tokens, tokens, tokens, key_tokens, key_tokens)
    rows = (_RowsStruct.of(x, (count, heads, head_width)) for x, count in zip(tensors, counts, strict=True))
    cu_seqlens = (pointer(layout.cu_seqlens, torch.int64, sentences + 1) for layout in (query_layout, key_layout))
    struct = _AttentionStruct(
        *rows, *cu_seqlens, tokens, key_tokens, sentences, heads, head_width, key_layout.max_seqlen, causal, dropout
    )
    status = engine().attention(ctypes.byref(struct), *team_of_torch())
    check_status(status, "attention", f"packed sentences of {tokens} queries and {key_tokens} keys in total")
