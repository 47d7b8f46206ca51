"""Pairs of ids to packed batches, in an order that is a pure function of seed, epoch and position.

Enters: prepared pairs and a budget of target tokens. Leaves: batches of concatenated sentences, without padding. No
state is carried between two batches: batch `position` of epoch `epoch` can be made at any time, by any process, and is
always the same. So exact resume needs two numbers, and skips nothing.
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

Numbers = NDArray[np.int64]

# Batches whose sentences are sorted by length together: sentences of like length meet, yet batches differ every epoch.
_WINDOW = 100
_MOST = 10**10  # pairs per epoch


@dataclass(frozen=True)
class Batch:
    """Packed sentences, ready for the model; the loss is divided by `tokens`, those of the target."""

    src: Int[Tensor, "M"]
    tgt_in: Int[Tensor, "N"]
    tgt_out: Int[Tensor, "N"]
    src_layout: Packed
    tgt_layout: Packed
    tokens: int

    def to(self, device: torch.device) -> "Batch":
        """A copy on another device."""
        src, tgt_in, tgt_out = (ids.to(device) for ids in (self.src, self.tgt_in, self.tgt_out))
        return Batch(src, tgt_in, tgt_out, self.src_layout.to(device), self.tgt_layout.to(device), self.tokens)

    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors of ids and layouts, in a fixed order."""
        of_layouts = (
            part
            for one in (self.src_layout, self.tgt_layout)
            for part in (one.positions, one.sequence_ids, one.cu_seqlens)
        )
        return (self.src, self.tgt_in, self.tgt_out, *of_layouts)

    def twice(self) -> "Batch":
        """All sentences, then all of them again (R-Drop). `tokens` stays: it is what the loss is divided by."""
        src, tgt_in, tgt_out = (torch.cat((ids, ids)) for ids in (self.src, self.tgt_in, self.tgt_out))
        return Batch(src, tgt_in, tgt_out, self.src_layout.twice(), self.tgt_layout.twice(), self.tokens)

    def halves(self) -> "tuple[Batch, Batch]":
        """Two batches: the first half of the sentences, and the others."""
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

    ids: Numbers
    lengths: Numbers

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> "Ragged":
        """From one list per sentence."""
        return cls(*concatenate_ids(rows))

    def with_special(self, special: int, *, before: bool = False) -> Tensor:
        """The ids with a special token after each sentence, or before it."""
        ids = np.full(len(self.ids) + len(self.lengths), special)
        earlier_sentences = np.repeat(np.arange(len(self.lengths)), self.lengths)
        ids[np.arange(before, len(self.ids) + before) + earlier_sentences] = self.ids
        return torch.from_numpy(ids)

    def rows(self) -> list[list[int]]:
        """One list per sentence."""
        ids, ends = self.ids.tolist(), np.cumsum(self.lengths).tolist()
        return [ids[start:end] for start, end in pairwise([0, *ends])]


Random: TypeAlias = np.random.Generator
Collate: TypeAlias = Callable[
    [Ragged, Ragged, Random], Batch
]  # whatever is random about a batch is drawn from the last


def collate(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Batch:
    """Sentences without special tokens as a batch of pairs."""
    return collate_pairs(Ragged.of(sources), Ragged.of(targets))


def collate_pairs(source: Ragged, target: Ragged, _random: Random | None = None) -> Batch:
    """A batch of pairs: EOS after each source, BOS before each target, EOS after it."""
    src_layout, tgt_layout = (Packed.from_lengths(torch.from_numpy(side.lengths + 1)) for side in (source, target))
    tgt_in, tgt_out = target.with_special(BOS, before=True), target.with_special(EOS)
    return Batch(source.with_special(EOS), tgt_in, tgt_out, src_layout, tgt_layout, len(tgt_out))


def target_tokens(pairs: Prepared) -> Numbers:
    """What each pair takes of a batch's budget: the target's tokens and EOS."""
    return pairs.target.lengths() + 1


@dataclass(frozen=True)
class Resegment:
    """BPE dropout: each side's sentences segmented anew every epoch, as a function of sentences and their keys."""

    source: Callable[[Sequence[Sequence[int]], Sequence[str]], list[list[int]]]
    target: Callable[[Sequence[Sequence[int]], Sequence[str]], list[list[int]]]
    max_tokens: int  # a sentence that would become longer stays as it is


class Batches:
    """All batches of all epochs.

    mixed: a batch has sentences of all lengths, in random order; else of like length, which wastes less where attention
    pads to the longest sentence. collate and sizes: what a batch holds, and what each pair takes of its budget.
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
        sizes: Callable[[Prepared], Numbers] = target_tokens,
    ) -> None:
        self._pairs = pairs
        self._collate = collate
        self._resegment = resegment
        self._budget = tokens_per_batch
        self._seed = seed
        self._mixed = mixed
        self._lengths = sizes(pairs)
        self._sources = pairs.source.lengths()
        _check_weights(pairs)

    def epoch(self, epoch: int) -> list[Numbers]:
        """The indices of the pairs in each batch of an epoch.

        Where a pair is repeated within an epoch its index is greater by the number of all pairs, so that whatever is
        random about it can differ each time.
        """
        random = np.random.Generator(np.random.Philox([self._seed, epoch]))
        order = random.permutation(_drawn(self._pairs, epoch, random))
        if self._mixed:
            return self._split(order, self._budget)
        batches = []
        for window in self._split(order, self._budget * _WINDOW):
            which = window % len(self._pairs)
            batches += self._split(window[np.lexsort((self._sources[which], self._lengths[which]))], self._budget)
        return [batches[number] for number in random.permutation(len(batches))]

    def with_budget(self, tokens_per_batch: int) -> "Batches":
        """The same pairs in batches of another size."""
        other = copy(self)
        other._budget = tokens_per_batch
        return other

    def _split(self, order: Numbers, budget: int) -> list[Numbers]:
        return _split(order, self._lengths[order % len(self._pairs)], budget)

    def batch(self, numbers: Numbers, epoch: int) -> Batch:
        """The batch of these pairs in an epoch."""
        which = numbers % len(self._pairs)
        source, target = _take(self._pairs.source, which), _take(self._pairs.target, which)
        random = np.random.Generator(np.random.Philox([self._seed, epoch, int(numbers[0])]))
        if (resegment := self._resegment) is None:
            return self._collate(source, target, random)
        sources, targets = source.rows(), target.rows()
        keys = [f"{self._seed} {epoch} {number}" for number in numbers.tolist()]
        again = resegment.source(sources, keys), resegment.target(targets, [f"{key} target" for key in keys])
        sources, targets = (
            [new if len(new) <= resegment.max_tokens else old for old, new in zip(*sides, strict=True)]
            for sides in zip((sources, targets), again, strict=True)
        )
        return self._collate(Ragged.of(sources), Ragged.of(targets), random)


def in_order(
    pairs: Prepared,
    tokens_per_batch: int,
    collate: Collate = collate_pairs,
    sizes: Callable[[Prepared], Numbers] = target_tokens,
) -> Iterator[Batch]:
    """Every pair once, in corpus order, and whatever is random always the same: for validation."""
    for numbers in _split(np.arange(len(pairs)), np.asarray(sizes(pairs)), tokens_per_batch):
        random = np.random.Generator(np.random.Philox(int(numbers[0])))
        yield collate(_take(pairs.source, numbers), _take(pairs.target, numbers), random)


def _take(side: TokenizedSide, numbers: Numbers) -> Ragged:
    return Ragged(*gather_texts(side.ids, side.ends, numbers))


def _check_weights(pairs: Prepared) -> None:
    """An epoch must have at least one pair, and fit into memory."""
    count = sum(corpus.weight * corpus.kept for corpus in pairs.corpora)
    if not 1 <= count <= _MOST:
        each = ", ".join(f"{corpus.weight:g} x {corpus.kept:,}" for corpus in pairs.corpora)
        raise DataError(
            f"an epoch would have {count:.3g} pairs (weight times pairs: {each}), expected 1 to {_MOST:.0e}: "
            f"give a {'larger' if count < 1 else 'smaller'} --weight"
        )


def _drawn(pairs: Prepared, epoch: int, random: np.random.Generator) -> Numbers:
    """Each pair as often as its corpus's weight: 2 is twice, 0.5 a different half of them every epoch.

    Fractions of a pair are carried over to the next epoch, so that small weights are exact in the long run.
    """
    drawn, start = [], 0
    for corpus in pairs.corpora:
        whole = np.arange(start, start + corpus.kept)
        times, part = divmod(corpus.weight, 1.0)
        drawn += [whole + again * len(pairs) for again in range(int(times))]
        some = round(part * corpus.kept * (epoch + 1)) - round(part * corpus.kept * epoch)
        drawn.append(random.permutation(whole)[:some] + int(times) * len(pairs))
        start += corpus.kept
    return np.concatenate(drawn)


def _split(numbers: Numbers, lengths: NDArray[Any], budget: int) -> list[Numbers]:
    """Consecutive sentences, of these lengths, with at most `budget` tokens; a longer one is a batch of its own."""
    ends = np.cumsum(lengths)
    runs, start = [], 0
    while start < len(numbers):
        used = ends[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(ends, used + budget, side="right")))
        runs.append(numbers[start:end])
        start = end
    return runs
