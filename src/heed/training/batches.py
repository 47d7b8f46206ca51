"""Pairs of ids to batches, in an order that is a pure function of seed, epoch and position.

Enters: prepared pairs and a budget of target tokens. Leaves: packed batches, nothing between the sentences. Nothing is
remembered between two batches: batch `position` of epoch `epoch` can be made at any time, on any process, and is always
the same. So resuming needs two numbers, and skips nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from heed.model.layout import Packed
from heed.text.prepare import Prepared, Side
from heed.text.tokenizer import BOS, EOS

Numbers = NDArray[np.int64]

_WINDOW = (
    100  # batches that are sorted by length together: long sentences meet long ones, yet batches differ every epoch
)


@dataclass(frozen=True)
class Batch:
    """Sentences end to end, ready for the model; `tokens` counts the target's, which the loss is divided by."""

    src: Int[Tensor, "M"]
    tgt_in: Int[Tensor, "N"]
    tgt_out: Int[Tensor, "N"]
    src_layout: Packed
    tgt_layout: Packed
    tokens: int

    def to(self, device: torch.device) -> "Batch":
        """The same batch on another device."""
        src, tgt_in, tgt_out = (ids.to(device) for ids in (self.src, self.tgt_in, self.tgt_out))
        return Batch(src, tgt_in, tgt_out, self.src_layout.to(device), self.tgt_layout.to(device), self.tokens)

    def twice(self) -> "Batch":
        """Every sentence a second time, after all of them. `tokens` stays: it is what the loss is divided by."""
        src, tgt_in, tgt_out = (torch.cat((ids, ids)) for ids in (self.src, self.tgt_in, self.tgt_out))
        src_layout, tgt_layout = (
            Packed.of_lengths(layout.offsets.diff().tolist() * 2) for layout in (self.src_layout, self.tgt_layout)
        )
        return Batch(src, tgt_in, tgt_out, src_layout, tgt_layout, self.tokens)


def collate(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Batch:
    """Sentences without special tokens as a batch: the source ends, the target begins and ends."""
    source = [[*ids, EOS] for ids in sources]
    target = [[BOS, *ids, EOS] for ids in targets]
    src_layout = Packed.of_lengths([len(ids) for ids in source])
    tgt_layout = Packed.of_lengths([len(ids) - 1 for ids in target])
    tgt_in, tgt_out = (_end_to_end([ids[part] for ids in target]) for part in (slice(None, -1), slice(1, None)))
    return Batch(_end_to_end(source), tgt_in, tgt_out, src_layout, tgt_layout, len(tgt_out))


def _end_to_end(rows: list[list[int]]) -> Tensor:
    return torch.tensor([token for row in rows for token in row], dtype=torch.int64)


@dataclass(frozen=True)
class Recut:
    """How the sentences of each side are cut into other tokens every time: a function of sentences and their keys."""

    source: Callable[[Sequence[Sequence[int]], Sequence[str]], list[list[int]]]
    target: Callable[[Sequence[Sequence[int]], Sequence[str]], list[list[int]]]
    max_tokens: int  # a sentence that would become longer stays as it is


class Batches:
    """All batches there will ever be."""

    def __init__(self, pairs: Prepared, tokens_per_batch: int, seed: int, recut: Recut | None = None) -> None:
        self._pairs = pairs
        self._recut = recut
        self._budget = tokens_per_batch
        self._seed = seed
        self._lengths = pairs.target.lengths() + 1  # with the token that ends it
        self._sources = pairs.source.lengths()

    def epoch(self, epoch: int) -> list[Numbers]:
        """The numbers of the pairs in each batch of an epoch."""
        random = np.random.Generator(np.random.Philox([self._seed, epoch]))
        order = random.permutation(_drawn(self._pairs, random))
        batches = []
        for window in _cut(order, self._lengths, self._budget * _WINDOW):
            by_length = window[np.lexsort((self._sources[window], self._lengths[window]))]
            batches += _cut(by_length, self._lengths, self._budget)
        return [batches[number] for number in random.permutation(len(batches))]

    def batch(self, numbers: Numbers, epoch: int) -> Batch:
        """The batch of these pairs as they are seen in an epoch."""
        sources, targets = _take(self._pairs.source, numbers), _take(self._pairs.target, numbers)
        if (recut := self._recut) is not None:
            keys = [f"{self._seed} {epoch} {number}" for number in numbers.tolist()]
            again = recut.source(sources, keys), recut.target(targets, [f"{key} target" for key in keys])
            sources, targets = (
                [new if len(new) <= recut.max_tokens else old for old, new in zip(*sides, strict=True)]
                for sides in zip((sources, targets), again, strict=True)
            )
        return collate(sources, targets)


def in_order(pairs: Prepared, tokens_per_batch: int) -> Iterator[Batch]:
    """Every pair once, in the order of the corpus: for validation."""
    for numbers in _cut(np.arange(len(pairs)), pairs.target.lengths() + 1, tokens_per_batch):
        yield collate(_take(pairs.source, numbers), _take(pairs.target, numbers))


def _take(side: Side, numbers: Numbers) -> list[list[int]]:
    return [side[number].tolist() for number in numbers.tolist()]


def _drawn(pairs: Prepared, random: np.random.Generator) -> Numbers:
    """Each pair as often as its corpus weighs: weight 2 is twice, weight 0.5 a different half of them every epoch."""
    drawn, start = [], 0
    for corpus in pairs.corpora:
        whole = np.arange(start, start + corpus.kept)
        times, part = divmod(corpus.weight, 1.0)
        drawn += [whole] * int(times)
        drawn.append(random.permutation(whole)[: round(part * corpus.kept)])
        start += corpus.kept
    return np.concatenate(drawn)


def _cut(numbers: Numbers, lengths: NDArray[Any], budget: int) -> list[Numbers]:
    """Runs of sentences of at most `budget` tokens; a longer sentence is a run of its own."""
    ends = np.cumsum(lengths[numbers])
    runs, start = [], 0
    while start < len(numbers):
        used = ends[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(ends, used + budget, side="right")))
        runs.append(numbers[start:end])
        start = end
    return runs
