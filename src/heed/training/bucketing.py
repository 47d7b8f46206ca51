"""Batches of one shape, whatever is in them: what a GPU has done once it can then repeat without being told again.

Enters: a packed batch. Leaves: one with exactly so many tokens and sentences. What is left over is filled with padding
in sentences of its own, which no real sentence sees and no loss counts. A batch with too much in it is cut in two.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from heed.model.layout import Packed
from heed.text.tokenizer import PAD
from heed.training.batches import Batch

_ROUND = 128  # tokens: products of matrices like sizes that are multiples of this
_FILLER = 64  # tokens of a sentence of padding: attention's work grows with the square
_SPARE = 1.02  # a little more room than the examples need


@dataclass(frozen=True)
class Shape:
    """How many tokens and sentences there is room for."""

    sources: int
    targets: int
    sentences: int
    longest: int  # no sentence has more tokens

    @classmethod
    def for_batches_like(cls, examples: Iterable[Batch], longest: int) -> "Shape":
        """Room for batches like these, and for any single pair of sentences of at most `longest` tokens."""
        sizes = torch.tensor(
            [(len(one.src), len(one.tgt_in), len(one.src_layout.cu_seqlens)) for one in examples], device="cpu"
        )
        sources, targets, sentences = sizes.max(0).values.tolist()
        sources, targets = (_up(max(round(_SPARE * room), longest + 1) + 1) for room in (sources, targets))
        fillers = max(sources, targets) // _FILLER + 1
        return cls(sources, targets, round(sentences * 1.2) + fillers, max(longest, _FILLER))

    @property
    def numbers(self) -> int:
        """How many numbers a batch of this shape is."""
        return sum(self._parts())

    def _parts(self) -> tuple[int, ...]:
        bounds = self.sentences + 1
        return (self.sources,) * 3 + (bounds,) + (self.targets,) * 4 + (bounds,)

    def batch(self, numbers: Int[Tensor, "numbers"], tokens: int = 0) -> Batch:
        """The numbers as a batch; nothing is copied."""
        src, places, owners, bounds, tgt_in, tgt_out, tgt_places, tgt_owners, tgt_bounds = numbers.split(self._parts())
        src_layout = Packed(places, owners, bounds, self.longest)
        tgt_layout = Packed(tgt_places, tgt_owners, tgt_bounds, self.longest)
        return Batch(src, tgt_in, tgt_out, src_layout, tgt_layout, tokens)

    def has_room_for(self, batch: Batch) -> bool:
        """Whether a batch fits, and sentences of padding with at least one token on both sides."""
        left = (self.sources - len(batch.src), self.targets - len(batch.tgt_in))
        sentences = len(batch.src_layout.cu_seqlens) - 1
        return min(left) >= _fillers(left) and sentences + _fillers(left) <= self.sentences

    def fill(self, batch: Batch) -> Int[Tensor, "numbers"]:
        """The numbers of a batch that fits."""
        fillers = _fillers((self.sources - len(batch.src), self.targets - len(batch.tgt_in)))
        source = self._side(batch.src_layout, self.sources, fillers)
        target = self._side(batch.tgt_layout, self.targets, fillers)
        src = _padded(batch.src, self.sources)
        ids = (_padded(ids, self.targets) for ids in (batch.tgt_in, batch.tgt_out))
        return torch.cat((src, *source, *ids, *target))

    def _side(self, layout: Packed, tokens: int, fillers: int) -> tuple[Tensor, Tensor, Tensor]:
        """Positions, owners and offsets, with sentences of padding and, after them, sentences of no tokens."""
        left, real = tokens - len(layout.sequence_ids), len(layout.cu_seqlens) - 1
        extra = torch.full((fillers,), left // fillers, device="cpu")
        extra[: left % fillers] += 1
        lengths = torch.cat((layout.cu_seqlens.diff(), extra, extra.new_zeros(self.sentences - real - fillers)))
        offsets = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
        owners = torch.arange(self.sentences, device=lengths.device).repeat_interleave(lengths)
        return torch.arange(tokens, device=lengths.device) - offsets[owners], owners, offsets


def parts(batch: Batch, shape: Shape) -> Iterator[Batch]:
    """The batch, or its halves, or theirs: whatever fits."""
    if shape.has_room_for(batch):
        yield batch
    else:
        for half in batch.halves():
            yield from parts(half, shape)


def _fillers(left: tuple[int, int]) -> int:
    return max(1, -(-max(left) // _FILLER))


def _padded(ids: Tensor, length: int) -> Tensor:
    return torch.nn.functional.pad(ids, (0, length - len(ids)), value=PAD)


def _up(tokens: int) -> int:
    return -(-tokens // _ROUND) * _ROUND
