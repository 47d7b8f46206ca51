"""The KV cache of the CPU decoders: keys and values of all hypotheses of a search.

The W hypotheses of a sentence share what is remembered of them: each step adds W columns of keys and values to those
of the sentence, and each hypothesis knows in which columns its own tokens are. When the search goes on with others only
that is reordered, never the keys and values; nor do those of sentences that are over make room. The twin is
`model.cache.Cache`, which keeps each row's own.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heed.model.layout import Packed
from heed.model.positions import PositionalEncoding, Rotation, sinusoids

# Keys and values of one layer: (1, H, columns, K) for one row alone; else (B·H, K, columns) and (B·H, columns, K).
Context: TypeAlias = tuple[Float[Tensor, "..."], Float[Tensor, "..."]]


class Room:
    """The keys and values of all layers, shared by successive states; `filled` columns of it are spoken for."""

    def __init__(self, numbers: Float[Tensor, "L 2 B H room K"], filled: int) -> None:
        self.numbers, self.filled = numbers, filled


@dataclass(frozen=True)
class Hypotheses:
    """W hypotheses for each of B sentences, of as many tokens each. A value: a step gives another one."""

    width: int  # W
    length: int  # tokens of each
    columns: int  # those of the room that are theirs
    room: Room
    written: Int[Tensor, "B W T"] | None  # in which columns the tokens of each are; none: in all of them, and W is 1
    real: Bool[Tensor, "B S"] | None  # False where the source is padding; none: it has none
    memory: Float[Tensor, "L 2 held H S K"]  # keys and values of the source
    places: Int[Tensor, "B"] | None = None  # which sentences of room and memory these are; none: all there are

    @property
    def sentences(self) -> int:
        """B: how many sentences these hypotheses translate."""
        return self.memory.shape[2] if self.places is None else len(self.places)

    @property
    def alone(self) -> bool:
        """One hypothesis of one sentence: there other arithmetic is quicker."""
        return self.width * self.sentences == 1

    @cached_property
    def sources(self) -> list[Context]:
        """Keys and values of the source, for each layer."""
        return by_layer(self.memory, alone=self.alone)

    @cached_property
    def hidden(self) -> Float[Tensor, "*sources 1 S"] | None:
        """What is added to the scores so that nobody sees padding."""
        if self.real is None:
            return None
        hidden = torch.zeros_like(self.real, dtype=self.memory.dtype).masked_fill_(~self.real, -torch.inf)
        hidden = hidden[:, None, None]
        return hidden if self.alone else hidden.expand(-1, self.memory.shape[3], -1, -1).flatten(0, 1)

    @cached_property
    def lengths(self) -> Int[Tensor, "B"]:
        """Of the sources."""
        if self.real is not None:
            return self.real.sum(1)
        return torch.full((self.sentences,), self.memory.shape[4], device=self.memory.device)

    @torch.no_grad()
    def select(self, rows: Int[Tensor, "B W"], sentences: Int[Tensor, "B"] | None = None) -> "Hypotheses":
        """The hypotheses a search goes on with; as `Cache.select`."""
        width, written = rows.shape[1], None
        if self.written is not None or self.width > 1 or width > 1:
            written = self.all_written().flatten(0, 1).index_select(0, rows.flatten()).unflatten(0, rows.shape)
        if sentences is None:
            return self if written is None else replace(self, width=width, written=written)
        real = None if self.real is None else self.real[sentences]
        places = sentences if self.places is None else self.places[sentences]
        kept = replace(self, width=width, written=written, real=real, places=places)
        distinct = bool((sentences.diff() > 0).all())
        return kept if distinct else kept.together()  # one that comes twice goes on in two ways

    def all_written(self) -> Int[Tensor, "B W T"]:
        """In which columns the tokens of each hypothesis are, even if in all of them."""
        if self.written is not None:
            return self.written
        return torch.arange(self.columns, device=self.memory.device).expand(self.sentences, 1, self.columns)

    def together(self) -> "Hypotheses":
        """The same, with nothing between their keys and values."""
        if self.places is None:
            return self
        room = Room(self.room.numbers.index_select(2, self.places), self.columns)
        return replace(self, room=room, memory=self.memory.index_select(2, self.places), places=None)

    def with_room(self) -> "Hypotheses":
        """The same, with room for one token more of each that no other state will write to."""
        capacity, needed = self.room.numbers.shape[4], self.columns + self.width
        if self.room.filled == self.columns and needed <= capacity:
            return self
        kept = self.together()
        shape = list(kept.room.numbers.shape)
        shape[4] = capacity if needed <= capacity else 2 * needed
        numbers = kept.room.numbers.new_empty(shape)
        numbers[:, :, :, :, : self.columns] = kept.room.numbers[:, :, :, :, : self.columns]
        return replace(kept, room=Room(numbers, self.columns))

    def longer(self) -> "Hypotheses":
        """With one token more each, whose keys and values are about to be put into the next W columns of the room."""
        columns = self.room.filled = self.columns + self.width
        written = self.written
        if self.width > 1 or written is not None:
            new = torch.arange(self.columns, columns, device=self.memory.device)
            new = new[:, None].expand(self.sentences, -1, 1)
            written = torch.cat((self.all_written(), new), 2)
        longer = replace(self, length=self.length + 1, columns=columns, written=written)
        same = ("sources", "hidden", "lengths")
        longer.__dict__.update({name: self.__dict__[name] for name in same if name in self.__dict__})
        return longer

    def mask(self) -> Float[Tensor, "*sources W columns"] | None:
        """What is added to the scores so that each hypothesis sees the columns of its own tokens alone."""
        if self.written is None:
            return None
        hidden = self.memory.new_full((*self.written.shape[:2], self.columns), -torch.inf)
        hidden = hidden.scatter_(2, self.written, 0.0)[:, None]
        return hidden if self.alone else hidden.expand(-1, self.memory.shape[3], -1, -1).flatten(0, 1)


def by_layer(both: Float[Tensor, "L 2 B H columns K"], *, alone: bool) -> list[Context]:
    """Keys and values as each layer takes them."""
    keys, values = (both if alone else both.flatten(2, 3)).unbind(1)
    return list(zip((keys if alone else keys.mT).unbind(0), values.unbind(0), strict=True))


_FIRST_COLUMNS = 64  # columns of the first cache


class PackedSources(NamedTuple):
    """Source tokens without their padding, which may be anywhere, and their layout."""

    ids: Int[Tensor, "N"]
    layout: Packed
    is_padded: bool

    @classmethod
    def of(cls, src: Int[Tensor, "B S"], pad_id: int) -> "PackedSources":
        """Of padded rows."""
        real = src != pad_id
        lengths = real.sum(1)
        return cls(src[real], Packed.from_lengths(lengths), bool(lengths.min() < src.shape[1]))

    def hypotheses(self, keys_values: Float[Tensor, "N width"], shape: tuple[int, int, int, int]) -> Hypotheses:
        """One empty hypothesis per source. keys_values: of all layers, (L, 2, H, K) per token."""
        memory = self.layout.to_rows(keys_values).unflatten(-1, shape).permute(2, 3, 0, 4, 1, 5).contiguous()
        room = memory.new_empty(*memory.shape[:4], _FIRST_COLUMNS, memory.shape[-1])
        return Hypotheses(1, 0, 0, Room(room, 0), None, self.layout.token_mask if self.is_padded else None, memory)


class PositionTable:
    """Position codes, an embedding to add or a rotation, computed for many positions at a time."""

    def __init__(self, code: PositionalEncoding, like: Float[Tensor, "V D"]) -> None:
        self._code, self._like = code, like
        self._extend(256)

    def at(self, position: int) -> tuple[Float[Tensor, "D"] | None, Rotation | None]:
        """The code of one position."""
        if self._code.kind == "rotary":
            if position >= len(self._rotation.cos):
                self._extend(2 * position)
            return None, Rotation(self._rotation.cos[position], self._rotation.sin[position])
        if position >= len(self._table) and self._code.table is None:
            self._extend(2 * position)
        return self._table[position], None

    def _extend(self, count: int) -> None:
        places, dtype = torch.arange(count, device=self._like.device), self._like.dtype
        if self._code.kind == "rotary":
            self._rotation = Rotation.at(places, self._code.head_width, dtype)
        elif self._code.table is None:
            self._table = sinusoids(places, self._like.shape[1]).to(dtype)
        else:
            self._table = self._code.table.weight.detach()
