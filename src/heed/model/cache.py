"""The KV cache of incremental decoding: a step computes the new tokens only, not the whole prefix again.

A `KVCache` is immutable: a step takes one and returns another, and the old one stays valid. Keys and values are not
copied at each step: they lie in preallocated buffers, each cache reads its own prefix of the slots, and the newest
appends behind it. A copy is made only when an older cache is continued a second time, or when a full buffer doubles.
Knows nothing of search; `select` is all that a beam needs.
"""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heed.errors import InputError
from heed.model.attention import KeysValues
from heed.model.layout import AttentionPattern, Beams, Padded, check_mask

_INITIAL_CAPACITY = 32  # columns: most sentences fit before the buffer has doubled twice


class _Buffer:
    """Preallocated keys and values of one layer, shared by successive caches; the first `filled` columns are in use."""

    def __init__(self, slots: Float[Tensor, "2 R H capacity K"], filled: int) -> None:
        self.slots = slots
        self.filled = filled


class LayerKVCache:
    """The self-attention keys and values of one layer: the first `length` columns of a buffer."""

    def __init__(self, buffer: _Buffer | None = None, length: int = 0) -> None:
        self._buffer = buffer
        self.length = length

    def copy(self) -> "LayerKVCache":
        """A shallow copy that shares the buffer; no tensor is copied."""
        return LayerKVCache(self._buffer, self.length)

    def append(
        self, new: tuple[Float[Tensor, "R T H K"], Float[Tensor, "R T H K"]]
    ) -> tuple[Float[Tensor, "R C H K"], Float[Tensor, "R C H K"]]:
        """Append the keys and values of T tokens; returns those of all C tokens so far."""
        new_kv = torch.stack(new).transpose(2, 3)  # (2, R, H, T, K)
        buffer = self._reserve(new_kv)
        end = self.length + new_kv.shape[3]
        buffer.slots[:, :, :, self.length : end] = new_kv
        buffer.filled = self.length = end
        self._buffer = buffer
        keys, values = buffer.slots[:, :, :, :end].transpose(2, 3)
        return keys, values

    def select(self, rows: Int[Tensor, "R"]) -> "LayerKVCache":
        """The cached keys and values of these rows."""
        if self._buffer is None:
            return self
        return LayerKVCache(_Buffer(self._buffer.slots.index_select(1, rows), self.length), self.length)

    def _reserve(self, new: Float[Tensor, "2 R H T K"]) -> _Buffer:
        """A buffer that holds this prefix and has free slots for the new tokens."""
        _, rows, heads, length, width = new.shape
        needed = self.length + length
        if self._buffer is None:
            return _Buffer(new.new_empty(2, rows, heads, max(_INITIAL_CAPACITY, needed), width), 0)
        capacity = self._buffer.slots.shape[3]
        if self._buffer.filled == self.length and needed <= capacity:
            return self._buffer
        slots = new.new_empty(2, rows, heads, capacity if needed <= capacity else 2 * needed, width)
        slots[:, :, :, : self.length] = self._buffer.slots[:, :, :, : self.length]
        return _Buffer(slots, self.length)


@runtime_checkable
class LayerCache(Protocol):
    """What one decoder layer keeps of the tokens so far: keys and values, or the state of a recurrence."""

    def copy(self) -> "LayerCache":
        """A shallow copy that a step may update; no tensor is copied."""

    def select(self, rows: Int[Tensor, "R"]) -> "LayerCache":
        """The cache of these rows."""


@dataclass(frozen=True)
class KVCache:
    """The decoder's state for R = B·W hypotheses, W per sentence, after C columns of tokens."""

    width: int  # W, the beam size
    token_mask: Bool[Tensor, "R C"]  # False where a row has padding
    past: tuple[LayerCache, ...]  # self-attention keys and values, one per decoder layer
    source: Bool[Tensor, "B S"] | None = None  # the source's token mask; None: decoder-only
    memory: tuple[KeysValues, ...] = ()  # cross-attention keys and values, (B, S, H, K), one pair per decoder layer

    def advance(self, new: Bool[Tensor, "R T"]) -> "KVCache":
        """The cache after T more columns, whose keys and values the layers are about to append."""
        if len(new) != len(self.token_mask):
            raise InputError(f"a step of {len(new)} rows cannot continue a cache of {len(self.token_mask)} rows")
        past = tuple(layer.copy() for layer in self.past)
        return replace(self, token_mask=torch.cat((self.token_mask, new), 1), past=past)

    def select(self, rows: Int[Tensor, "B W"], sentences: Int[Tensor, "B"] | None = None) -> "KVCache":
        """The cache of the hypotheses that a search keeps.

        rows[b, w] is the old row that hypothesis w of sentence b continues, a row of the same sentence. sentences are
        the indices of the sentences that are not finished, in their new order; None: all, and the source stays as is.
        """
        before = len(self.token_mask) // self.width
        kept = before if sentences is None else len(sentences)
        if len(rows) != kept:
            raise InputError(f"rows are given for {len(rows)} sentences, but {kept} of {before} are kept")
        flat = rows.flatten()
        source, memory = self.source, self.memory
        if sentences is not None and source is not None:
            source = source[sentences]
            memory = tuple((keys[sentences], values[sentences]) for keys, values in memory)
        past = tuple(layer.select(flat) for layer in self.past)
        return KVCache(rows.shape[1], self.token_mask[flat], past, source, memory)

    def lengths(self) -> Int[Tensor, "R 1"]:
        """The number of tokens in each row, padding not counted."""
        return self.token_mask.sum(1, keepdim=True)

    def self_pattern(self, new: Padded) -> AttentionPattern:
        """Self-attention of the new tokens: to every token of their row up to themselves."""
        return AttentionPattern.between(new, Padded.from_mask(self.token_mask), causal=True)

    def cross_pattern(self, new: Padded, extra_mask: Bool[Tensor, "R T S"] | None) -> AttentionPattern | None:
        """Cross-attention of the new tokens: the W hypotheses of a sentence attend to its source as one row."""
        if self.source is None:
            return None
        queries = Beams.group(new, self.width)
        if extra_mask is not None:
            check_mask(extra_mask, (*new.token_mask.shape, self.source.shape[1]))
            extra_mask = queries.to_rows(extra_mask)
        return AttentionPattern.between(queries, Padded.from_mask(self.source), extra_mask=extra_mask)
