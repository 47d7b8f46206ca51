"""KV cache of the CPU decoders: keys and values of all hypotheses of a search, reordered by index only.

The W hypotheses of a sentence share the sentence's cache: each step appends W columns of keys and values, and
`kv_index` lists the columns that hold the tokens of each hypothesis. A beam step reorders `kv_index`, never keys or
values; finished sentences stay in the cache until it is compacted. The reference is `model.cache.KVCache`, with
a separate copy for each row.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heed.model.layout import Packed
from heed.model.positions import PositionalEncoding, Rotation, sinusoids

# Keys and values of one layer: (1, H, columns, K) for a single row; else (B·H, K, columns) and (B·H, columns, K).
LayerKV: TypeAlias = tuple[Float[Tensor, "..."], Float[Tensor, "..."]]


class KVBuffer:
    """Keys and values of all layers, shared by successive states; the first `used` columns are taken."""

    def __init__(self, data: Float[Tensor, "L 2 B H capacity K"], used: int) -> None:
        self.data, self.used = data, used


@dataclass(frozen=True)
class DecoderState:
    """W hypotheses of equal length for each of B sentences. Immutable: a step returns a new state."""

    beam: int  # W
    length: int  # target tokens of each hypothesis
    columns: int  # columns of the cache that belong to this state
    kv_cache: KVBuffer
    kv_index: Int[Tensor, "B W T"] | None  # the columns of each hypothesis's tokens; none: all columns, and W is 1
    source_mask: Bool[Tensor, "B S"] | None  # False where the source is padding; none: no padding
    source_kv: Float[Tensor, "L 2 cached H S K"]  # keys and values of the source
    sentence_index: Int[Tensor, "B"] | None = None  # rows of kv_cache and source_kv in use; none: all of them

    @property
    def sentences(self) -> int:
        """B: the number of sentences being translated."""
        return self.source_kv.shape[2] if self.sentence_index is None else len(self.sentence_index)

    @property
    def is_single_row(self) -> bool:
        """Whether this is one hypothesis of one sentence, for which other kernels are faster."""
        return self.beam * self.sentences == 1

    @cached_property
    def source_kv_by_layer(self) -> list[LayerKV]:
        """Keys and values of the source, for each layer."""
        return split_by_layer(self.source_kv, single_row=self.is_single_row)

    @cached_property
    def source_bias(self) -> Float[Tensor, "*sources 1 S"] | None:
        """Additive attention mask of the source: -inf on padding."""
        if self.source_mask is None:
            return None
        bias = torch.zeros_like(self.source_mask, dtype=self.source_kv.dtype)
        bias = bias.masked_fill_(~self.source_mask, -torch.inf)[:, None, None]
        return bias if self.is_single_row else bias.expand(-1, self.source_kv.shape[3], -1, -1).flatten(0, 1)

    @cached_property
    def source_lengths(self) -> Int[Tensor, "B"]:
        """The number of real tokens of each source."""
        if self.source_mask is not None:
            return self.source_mask.sum(1)
        return torch.full((self.sentences,), self.source_kv.shape[4], device=self.source_kv.device)

    @torch.no_grad()
    def select(self, rows: Int[Tensor, "B W"], sentences: Int[Tensor, "B"] | None = None) -> "DecoderState":
        """Reorder for the next beam step; as `KVCache.select`."""
        beam, kv_index = rows.shape[1], None
        if self.kv_index is not None or self.beam > 1 or beam > 1:
            kv_index = self.full_kv_index().flatten(0, 1).index_select(0, rows.flatten()).unflatten(0, rows.shape)
        if sentences is None:
            return self if kv_index is None else replace(self, beam=beam, kv_index=kv_index)
        source_mask = None if self.source_mask is None else self.source_mask[sentences]
        sentence_index = sentences if self.sentence_index is None else self.sentence_index[sentences]
        state = replace(self, beam=beam, kv_index=kv_index, source_mask=source_mask, sentence_index=sentence_index)
        is_unique = bool((sentences.diff() > 0).all())
        return state if is_unique else state.compact()  # a duplicated sentence needs its own copy of the cache

    def full_kv_index(self) -> Int[Tensor, "B W T"]:
        """The columns of each hypothesis's tokens, written out where `kv_index` is None."""
        if self.kv_index is not None:
            return self.kv_index
        return torch.arange(self.columns, device=self.source_kv.device).expand(self.sentences, 1, self.columns)

    def compact(self) -> "DecoderState":
        """The same state with a cache of the sentences in use only."""
        if self.sentence_index is None:
            return self
        kv_cache = KVBuffer(self.kv_cache.data.index_select(2, self.sentence_index), self.columns)
        source_kv = self.source_kv.index_select(2, self.sentence_index)
        return replace(self, kv_cache=kv_cache, source_kv=source_kv, sentence_index=None)

    def reserve(self) -> "DecoderState":
        """The same state with W free columns that no other state will write to."""
        capacity, needed = self.kv_cache.data.shape[4], self.columns + self.beam
        if self.kv_cache.used == self.columns and needed <= capacity:
            return self
        state = self.compact()
        shape = list(state.kv_cache.data.shape)
        shape[4] = capacity if needed <= capacity else 2 * needed
        data = state.kv_cache.data.new_empty(shape)
        data[:, :, :, :, : self.columns] = state.kv_cache.data[:, :, :, :, : self.columns]
        return replace(state, kv_cache=KVBuffer(data, self.columns))

    def advance(self) -> "DecoderState":
        """One token more per hypothesis; the step then writes its keys and values to the next W columns."""
        columns = self.kv_cache.used = self.columns + self.beam
        kv_index = self.kv_index
        if self.beam > 1 or kv_index is not None:
            new = torch.arange(self.columns, columns, device=self.source_kv.device)
            new = new[:, None].expand(self.sentences, -1, 1)
            kv_index = torch.cat((self.full_kv_index(), new), 2)
        advanced = replace(self, length=self.length + 1, columns=columns, kv_index=kv_index)
        cached = ("source_kv_by_layer", "source_bias", "source_lengths")
        advanced.__dict__.update({name: self.__dict__[name] for name in cached if name in self.__dict__})
        return advanced

    def attention_bias(self) -> Float[Tensor, "*sources W columns"] | None:
        """Additive self-attention mask: -inf on columns of other hypotheses."""
        if self.kv_index is None:
            return None
        bias = self.source_kv.new_full((*self.kv_index.shape[:2], self.columns), -torch.inf)
        bias = bias.scatter_(2, self.kv_index, 0.0)[:, None]
        return bias if self.is_single_row else bias.expand(-1, self.source_kv.shape[3], -1, -1).flatten(0, 1)


def split_by_layer(keys_values: Float[Tensor, "L 2 B H columns K"], *, single_row: bool) -> list[LayerKV]:
    """Keys and values of each layer, in the layout of its attention kernel."""
    keys, values = (keys_values if single_row else keys_values.flatten(2, 3)).unbind(1)
    return list(zip((keys if single_row else keys.mT).unbind(0), values.unbind(0), strict=True))


_FIRST_COLUMNS = 64  # initial capacity of the cache


class PackedSources(NamedTuple):
    """Source tokens with the padding removed, and their layout."""

    ids: Int[Tensor, "N"]
    layout: Packed
    is_padded: bool

    @classmethod
    def of(cls, src: Int[Tensor, "B S"], pad_id: int) -> "PackedSources":
        """Pack padded rows."""
        source_mask = src != pad_id
        lengths = source_mask.sum(1)
        return cls(src[source_mask], Packed.from_lengths(lengths), bool(lengths.min() < src.shape[1]))

    def initial_state(self, keys_values: Float[Tensor, "N width"], shape: tuple[int, int, int, int]) -> DecoderState:
        """One empty hypothesis per source. keys_values: of all layers, (L, 2, H, K) per token."""
        source_kv = self.layout.to_rows(keys_values).unflatten(-1, shape).permute(2, 3, 0, 4, 1, 5).contiguous()
        data = source_kv.new_empty(*source_kv.shape[:4], _FIRST_COLUMNS, source_kv.shape[-1])
        return DecoderState(
            1, 0, 0, KVBuffer(data, 0), None, self.layout.token_mask if self.is_padded else None, source_kv
        )


class PositionTable:
    """Positional encodings (an embedding to add, or a rotation), precomputed for many positions."""

    def __init__(self, encoding: PositionalEncoding, like: Float[Tensor, "V D"]) -> None:
        self._encoding, self._like = encoding, like
        self._extend(256)

    def at(self, position: int) -> tuple[Float[Tensor, "D"] | None, Rotation | None]:
        """The embedding or the rotation of one position."""
        if self._encoding.kind == "rotary":
            if position >= len(self._rotation.cos):
                self._extend(2 * position)
            return None, Rotation(self._rotation.cos[position], self._rotation.sin[position])
        if position >= len(self._table) and self._encoding.table is None:
            self._extend(2 * position)
        return self._table[position], None

    def _extend(self, count: int) -> None:
        positions, dtype = torch.arange(count, device=self._like.device), self._like.dtype
        if self._encoding.kind == "rotary":
            self._rotation = Rotation.at(positions, self._encoding.head_width, dtype)
        elif self._encoding.table is None:
            self._table = sinusoids(positions, self._like.shape[1]).to(dtype)
        else:
            self._table = self._encoding.table.weight.detach()
