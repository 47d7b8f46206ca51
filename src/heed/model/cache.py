"""The KV cache of decoding: a step costs one token and not the whole sentence again.

A `KVCache` is a value: a step takes one and returns another, and the one it took still means what it meant. Yet nothing
is copied at each step: keys and values lie in buffers with spare slots, a value reads only its own slots, and the
newest value writes behind them. Only continuing an older value a second time, or a full buffer (which doubles), copies.
Knows nothing of search; `select` is all that a beam needs.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heed.errors import InputError
from heed.model.attention import KeysValues
from heed.model.layout import AttentionPattern, Beams, Padded, check_mask

_ROOM = 32  # columns of a first buffer: most sentences fit before it has doubled twice


class _Buffer:
    """Room for the keys and values of one layer, shared by successive values; `filled` columns are spoken for."""

    def __init__(self, room: Float[Tensor, "2 R H room K"], filled: int) -> None:
        self.room = room
        self.filled = filled


class LayerKVCache:
    """The self-attention keys and values of one layer: the first `length` columns of a buffer."""

    def __init__(self, buffer: _Buffer | None = None, length: int = 0) -> None:
        self._buffer = buffer
        self.length = length

    def copy(self) -> "LayerKVCache":
        """Another `LayerKVCache` of the same cache slots; no tensor is copied."""
        return LayerKVCache(self._buffer, self.length)

    def append(
        self, new: tuple[Float[Tensor, "R T H K"], Float[Tensor, "R T H K"]]
    ) -> tuple[Float[Tensor, "R C H K"], Float[Tensor, "R C H K"]]:
        """Put keys and values at the end; returns all there are now."""
        both = torch.stack(new).transpose(2, 3)  # (2, R, H, T, K)
        buffer = self._with_room_for(both)
        end = self.length + both.shape[3]
        buffer.room[:, :, :, self.length : end] = both
        buffer.filled = self.length = end
        self._buffer = buffer
        keys, values = buffer.room[:, :, :, :end].transpose(2, 3)
        return keys, values

    def select(self, rows: Int[Tensor, "R"]) -> "LayerKVCache":
        """The cached keys and values of these rows."""
        if self._buffer is None:
            return self
        return LayerKVCache(_Buffer(self._buffer.room.index_select(1, rows), self.length), self.length)

    def _with_room_for(self, new: Float[Tensor, "2 R H T K"]) -> _Buffer:
        both, rows, heads, length, width = new.shape
        needed = self.length + length
        if self._buffer is None:
            return _Buffer(new.new_empty(both, rows, heads, max(_ROOM, needed), width), 0)
        capacity = self._buffer.room.shape[3]
        if self._buffer.filled == self.length and needed <= capacity:
            return self._buffer
        room = new.new_empty(both, rows, heads, capacity if needed <= capacity else 2 * needed, width)
        room[:, :, :, : self.length] = self._buffer.room[:, :, :, : self.length]
        return _Buffer(room, self.length)


@dataclass(frozen=True)
class KVCache:
    """The state of R = B·W hypotheses, W for each of B sentences, after C columns of tokens."""

    width: int  # W
    token_mask: Bool[Tensor, "R C"]  # False where a row had padding
    past: tuple[LayerKVCache, ...]  # one a decoder layer
    source: Bool[Tensor, "B S"] | None = None  # False where the source is padding; none in a decoder alone
    memory: tuple[KeysValues, ...] = ()  # keys and values of the source, (B, S, H, K), one a decoder layer

    def advance(self, new: Bool[Tensor, "R T"]) -> "KVCache":
        """The value after T more columns, whose keys and values the layers are about to append."""
        if len(new) != len(self.token_mask):
            raise InputError(f"a step of {len(new)} rows cannot continue a cache of {len(self.token_mask)} rows")
        past = tuple(layer.copy() for layer in self.past)
        return replace(self, token_mask=torch.cat((self.token_mask, new), 1), past=past)

    def select(self, rows: Int[Tensor, "B W"], sentences: Int[Tensor, "B"] | None = None) -> "KVCache":
        """The hypotheses a search goes on with.

        rows[b, w] is the old row that hypothesis w of sentence b continues, a row of the same sentence. sentences says
        which sentences stay, in which order; none: all of them as they are, and the source is not touched.
        """
        before = len(self.token_mask) // self.width
        staying = before if sentences is None else len(sentences)
        if len(rows) != staying:
            raise InputError(f"rows are given for {len(rows)} sentences, but {staying} of {before} stay")
        flat = rows.flatten()
        source, memory = self.source, self.memory
        if sentences is not None and source is not None:
            source = source[sentences]
            memory = tuple((keys[sentences], values[sentences]) for keys, values in memory)
        past = tuple(layer.select(flat) for layer in self.past)
        return KVCache(rows.shape[1], self.token_mask[flat], past, source, memory)

    def tokens_so_far(self) -> Int[Tensor, "R 1"]:
        """How many tokens each row has, padding not counted."""
        return self.token_mask.sum(1, keepdim=True)

    def self_pattern(self, new: Padded) -> AttentionPattern:
        """Self-attention of the newest tokens: to all tokens up to themselves."""
        return AttentionPattern.between(new, Padded.from_mask(self.token_mask), causal=True)

    def cross_pattern(self, new: Padded, only: Bool[Tensor, "R T S"] | None) -> AttentionPattern | None:
        """Cross-attention of the newest tokens: the hypotheses of one sentence attend to its source as one row."""
        if self.source is None:
            return None
        together = Beams.of(new, self.width)
        if only is not None:
            check_mask(only, (*new.token_mask.shape, self.source.shape[1]))
            only = together.to_rows(only)
        return AttentionPattern.between(together, Padded.from_mask(self.source), only=only)
