"""Attention between sentences that lie end to end, in compiled code on a CPU: `csrc/attention.h` from Python.

No rows of equal length are made, no mask, and no matrix of weights larger than a few queries' at a time. The twins are
`plain_attention` and `fused_attention`, whose signature this has; which weights dropout takes is the hash of `dropped`.
"""

import ctypes
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor

from heed.backends.cpu.dropout import Dropout, drawn_seed
from heed.backends.cpu.library import check_done, native
from heed.backends.cpu.pointers import pointer, strided_pointer
from heed.model.layout import AttentionPattern, Packed

_address, _integer = ctypes.c_void_p, ctypes.c_int64


class _Rows(ctypes.Structure):
    _fields_: ClassVar = [("numbers", _address), ("down", _integer)]

    @classmethod
    def of(cls, x: Float[Tensor, "tokens H K"] | None, shape: tuple[int, int, int]) -> "_Rows":
        if x is None:
            return cls()
        if (shape[1] > 1 and x.stride(1) != shape[2]) or (shape[2] > 1 and x.stride(2) != 1):
            raise TypeError(f"compiled attention takes heads that lie side by side, found strides {x.stride()}")
        return cls(strided_pointer(x, torch.float32, *shape), x.stride(0))


class _Attention(ctypes.Structure):
    _fields_: ClassVar = [
        *((name, _Rows) for name in ("queries", "keys", "values", "found")),
        *((name, _Rows) for name in ("above", "by_queries", "by_keys", "by_values")),
        *((name, _address) for name in ("offsets", "key_offsets")),
        *((name, _integer) for name in ("tokens", "key_tokens")),
        *((name, _integer) for name in ("sentences", "heads", "size", "longest", "causal")),
        ("dropout", Dropout),
    ]


def compiled_attention(
    queries: Float[Tensor, "targets H K"],
    keys: Float[Tensor, "sources H K"],
    values: Float[Tensor, "sources H K"],
    pattern: AttentionPattern,
    dropout: float,
) -> Float[Tensor, "targets H K"]:
    """Attention between packed sentences, on a CPU."""
    return attend(queries, keys, values, pattern, Dropout.of(dropout, drawn_seed() if dropout else 0))


def attend(queries: Tensor, keys: Tensor, values: Tensor, pattern: AttentionPattern, dropout: Dropout) -> Tensor:
    """The same with a seed for dropout."""
    ours, theirs = pattern.packed_sides()
    return _Attend.apply(queries, keys, values, ours, theirs, pattern.causal, dropout)  # type: ignore[no-untyped-call]


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        ours: Packed,
        theirs: Packed,
        causal: bool,
        dropout: Dropout,
    ) -> Tensor:
        given = [_heads_side_by_side(x) for x in (queries, keys, values)]
        found = torch.empty(queries.shape, dtype=torch.float32, device="cpu")
        ctx.save_for_backward(*given)
        ctx.rest = (ours, theirs, causal, dropout)
        _run([*given, found, *(None,) * 4], *ctx.rest)
        return found

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        given = ctx.saved_tensors
        gradients = [torch.empty(x.shape, dtype=torch.float32, device="cpu") for x in given]
        _run([*given, None, _heads_side_by_side(above), *gradients], *ctx.rest)
        return *gradients, *(None,) * 4


def _heads_side_by_side(x: Float[Tensor, "tokens H K"]) -> Float[Tensor, "tokens H K"]:
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


def _run(vectors: list[Tensor | None], ours: Packed, theirs: Packed, causal: bool, dropout: Dropout) -> None:
    """Forward, or back: with the first eight fields of the structure, those that are there."""
    tokens, heads, size = cast("Tensor", vectors[0]).shape
    key_tokens, sentences = len(cast("Tensor", vectors[1])), len(ours.cu_seqlens) - 1
    counts = (tokens, key_tokens, key_tokens, tokens, tokens, tokens, key_tokens, key_tokens)
    rows = (_Rows.of(x, (count, heads, size)) for x, count in zip(vectors, counts, strict=True))
    offsets = (pointer(side.cu_seqlens, torch.int64, sentences + 1) for side in (ours, theirs))
    attention = _Attention(
        *rows, *offsets, tokens, key_tokens, sentences, heads, size, theirs.max_seqlen, causal, dropout
    )
    failed = native().heed_attend(ctypes.byref(attention), torch.get_num_threads())
    check_done(failed, "attention", f"sentences that fill {tokens} queries and {key_tokens} keys")
