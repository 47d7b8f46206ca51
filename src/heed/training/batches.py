"""Makes packed training batches from prepared pairs, in an order that depends only on seed and epoch.

Enters: prepared pairs and a budget of target tokens. Leaves: batches of concatenated sentences, without padding. No
state is carried from one batch to the next: any process can make batch `position` of an epoch at any time, and gets the
same one. So exact resume needs two numbers, epoch and position, and skips nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from heed.errors import DataError
from heed.model.layout import Packed
from heed.text.prepared import Prepared, TokenizedSide
from heed.text.tokenizer import BOS, EOS, PAD
from heed.text.word_cache import concatenate_ids, gather_texts

IntArray = NDArray[np.int64]

_SORT_WINDOW = 100  # batches: pairs are sorted by length within such a window, so that batches still differ every epoch
_MAX_PAIRS = 10**10  # per epoch


@dataclass(frozen=True)
class Batch:
    """Packed sentences, ready for the model; the loss is divided by `tokens`, the number of target tokens."""

    src: Int[Tensor, "M"]
    tgt_in: Int[Tensor, "N"]
    tgt_out: Int[Tensor, "N"]
    src_layout: Packed
    tgt_layout: Packed
    tokens: int

    def to(self, device: torch.device) -> "Batch":
        src, tgt_in, tgt_out = (ids.to(device) for ids in (self.src, self.tgt_in, self.tgt_out))
        return Batch(src, tgt_in, tgt_out, self.src_layout.to(device), self.tgt_layout.to(device), self.tokens)

    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors of ids and layouts, in a fixed order."""
        src, tgt = self.src_layout, self.tgt_layout
        layouts = (src.positions, src.sequence_ids, src.cu_seqlens, tgt.positions, tgt.sequence_ids, tgt.cu_seqlens)
        return (self.src, self.tgt_in, self.tgt_out, *layouts)

    def twice(self) -> "Batch":
        """All sentences, then all of them again, for R-Drop. `tokens` stays: the loss is divided by it."""
        src, tgt_in, tgt_out = (torch.cat((ids, ids)) for ids in (self.src, self.tgt_in, self.tgt_out))
        return Batch(src, tgt_in, tgt_out, self.src_layout.twice(), self.tgt_layout.twice(), self.tokens)

    def halves(self) -> "tuple[Batch, Batch]":
        """The first half of the sentences and the second half, as two batches."""
        count = len(self.src_layout.cu_seqlens) - 1
        return self._between(0, count // 2), self._between(count // 2, count)

    def _between(self, first: int, last: int) -> "Batch":
        (src_start, src_end), (tgt_start, tgt_end) = (
            layout.cu_seqlens[[first, last]].tolist() for layout in (self.src_layout, self.tgt_layout)
        )
        src_layout, tgt_layout = (
            Packed.from_lengths(layout.cu_seqlens[first : last + 1].diff())
            for layout in (self.src_layout, self.tgt_layout)
        )
        tgt_in, tgt_out = self.tgt_in[tgt_start:tgt_end], self.tgt_out[tgt_start:tgt_end]
        tokens = int((tgt_out != PAD).sum())
        return Batch(self.src[src_start:src_end], tgt_in, tgt_out, src_layout, tgt_layout, tokens)


@dataclass(frozen=True)
class Ragged:
    """Concatenated sentences of different lengths, without special tokens."""

    ids: IntArray
    lengths: IntArray

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> "Ragged":
        return cls(*concatenate_ids(rows))

    def with_special(self, special: int, *, before: bool = False) -> Tensor:
        """The ids with a special token after each sentence, or before each."""
        ids = np.full(len(self.ids) + len(self.lengths), special)
        earlier_sentences = np.repeat(np.arange(len(self.lengths)), self.lengths)
        ids[np.arange(before, len(self.ids) + before) + earlier_sentences] = self.ids
        return torch.from_numpy(ids)

    def rows(self) -> list[list[int]]:
        ids, ends = self.ids.tolist(), np.cumsum(self.lengths).tolist()
        return [ids[start:end] for start, end in pairwise([0, *ends])]


Random: TypeAlias = np.random.Generator
Collate: TypeAlias = Callable[[Ragged, Ragged, Random], Batch]  # sources, targets, the batch's random generator


def collate(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Batch:
    """A batch of pairs from token ids without special tokens."""
    return collate_pairs(Ragged.of(sources), Ragged.of(targets))


def collate_pairs(source: Ragged, target: Ragged, _random: Random | None = None) -> Batch:
    """A batch of pairs: EOS after each source, BOS before each target, EOS after it."""
    src_layout, tgt_layout = (Packed.from_lengths(torch.from_numpy(side.lengths + 1)) for side in (source, target))
    tgt_in, tgt_out = target.with_special(BOS, before=True), target.with_special(EOS)
    return Batch(source.with_special(EOS), tgt_in, tgt_out, src_layout, tgt_layout, len(tgt_out))


def target_tokens(pairs: Prepared) -> IntArray:
    """Each pair's size for the token budget: its target tokens, EOS included."""
    return pairs.target.lengths() + 1


ChangeIds = Callable[[Sequence[Sequence[int]], Sequence[str]], list[list[int]]]  # sentences, and a random key for each


@dataclass(frozen=True)
class Resegment:
    """Noise and BPE-dropout: other ids for the same sentences in every epoch."""

    source: ChangeIds
    target: ChangeIds
    max_tokens: int  # a sentence whose new segmentation is longer keeps the old one


class Batches:
    """The batches of every epoch.

    mixed: a batch has sentences of all lengths, in random order; otherwise sentences of similar length, which wastes
    less where attention pads to the longest sentence. collate: makes a batch of pairs. sizes: the tokens that each pair
    takes of a batch's budget.
    """

    def __init__(
        self,
        pairs: Prepared,
        tokens_per_batch: int,
        seed: int,
        resegment: Resegment | None = None,
        *,
        mixed: bool = False,
        collate: Collate = collate_pairs,
        sizes: Callable[[Prepared], IntArray] = target_tokens,
    ) -> None:
        self._pairs = pairs
        self._collate = collate
        self._resegment = resegment
        self._budget = tokens_per_batch
        self._seed = seed
        self._mixed = mixed
        self._sizes = sizes(pairs)
        self._source_lengths = pairs.source.lengths()
        _check_weights(pairs)

    def epoch(self, epoch: int) -> list[IntArray]:
        """The indices of the pairs in each batch of an epoch.

        Each repetition of a pair within an epoch adds the number of all pairs to its index, so that BPE dropout and
        masking can differ between repetitions.
        """
        random = np.random.Generator(np.random.Philox([self._seed, epoch]))
        order = random.permutation(_weighted_indices(self._pairs, epoch, random))
        if self._mixed:
            return self._split(order, self._budget)
        batches = []
        for window in self._split(order, self._budget * _SORT_WINDOW):
            pairs = window % len(self._pairs)
            by_length = np.lexsort((self._source_lengths[pairs], self._sizes[pairs]))
            batches += self._split(window[by_length], self._budget)
        return [batches[index] for index in random.permutation(len(batches))]

    def with_budget(self, tokens_per_batch: int) -> "Batches":
        """The same pairs in batches of another size."""
        other = copy(self)
        other._budget = tokens_per_batch
        return other

    def _split(self, order: IntArray, budget: int) -> list[IntArray]:
        return _split(order, self._sizes[order % len(self._pairs)], budget)

    def batch(self, indices: IntArray, epoch: int) -> Batch:
        """The batch of the pairs with these indices, one item of `epoch(epoch)`."""
        pairs = indices % len(self._pairs)
        source, target = _take(self._pairs.source, pairs), _take(self._pairs.target, pairs)
        random = np.random.Generator(np.random.Philox([self._seed, epoch, int(indices[0])]))
        if (resegment := self._resegment) is None:
            return self._collate(source, target, random)
        sources, targets = source.rows(), target.rows()
        keys = [f"{self._seed} {epoch} {index}" for index in indices.tolist()]
        resegmented = resegment.source(sources, keys), resegment.target(targets, [f"{key} target" for key in keys])
        sources, targets = (
            [new if len(new) <= resegment.max_tokens else old for old, new in zip(*sides, strict=True)]
            for sides in zip((sources, targets), resegmented, strict=True)
        )
        return self._collate(Ragged.of(sources), Ragged.of(targets), random)


def in_order(
    pairs: Prepared,
    tokens_per_batch: int,
    collate: Collate = collate_pairs,
    sizes: Callable[[Prepared], IntArray] = target_tokens,
) -> Iterator[Batch]:
    """Validation batches: every pair once, in corpus order, with the same random numbers (masking) every time."""
    for indices in _split(np.arange(len(pairs)), np.asarray(sizes(pairs)), tokens_per_batch):
        random = np.random.Generator(np.random.Philox(int(indices[0])))
        yield collate(_take(pairs.source, indices), _take(pairs.target, indices), random)


def _take(side: TokenizedSide, indices: IntArray) -> Ragged:
    return Ragged(*gather_texts(side.ids, side.ends, indices))


def _check_weights(pairs: Prepared) -> None:
    """Raise where the weights leave an epoch without pairs, or with more than memory holds."""
    count = sum(corpus.weight * corpus.kept for corpus in pairs.corpora)
    if not 1 <= count <= _MAX_PAIRS:
        sizes = ", ".join(f"{corpus.weight:g} x {corpus.kept:,}" for corpus in pairs.corpora)
        raise DataError(
            f"an epoch would have {count:.3g} pairs (weight times pairs: {sizes}), expected 1 to {_MAX_PAIRS:.0e}: "
            f"give a {'larger' if count < 1 else 'smaller'} weight"
        )


def _weighted_indices(pairs: Prepared, epoch: int, random: np.random.Generator) -> IntArray:
    """Each pair's index as often as its corpus's weight: weight 2 is twice, 0.5 a random half of the pairs.

    Fractions of a pair are carried over to the next epoch, so that small weights are exact in the long run.
    """
    indices, start = [], 0
    for corpus in pairs.corpora:
        all_pairs = np.arange(start, start + corpus.kept)
        repeats, fraction = divmod(corpus.weight, 1.0)
        indices += [all_pairs + repeat * len(pairs) for repeat in range(int(repeats))]
        count = round(fraction * corpus.kept * (epoch + 1)) - round(fraction * corpus.kept * epoch)
        indices.append(random.permutation(all_pairs)[:count] + int(repeats) * len(pairs))
        start += corpus.kept
    return np.concatenate(indices)


def _split(indices: IntArray, sizes: NDArray[Any], budget: int) -> list[IntArray]:
    """Split into consecutive batches of at most `budget` tokens; a larger sentence is a batch of its own."""
    ends = np.cumsum(sizes)
    batches, start = [], 0
    while start < len(indices):
        used = ends[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(ends, used + budget, side="right")))
        batches.append(indices[start:end])
        start = end
    return batches
