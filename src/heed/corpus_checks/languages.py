"""Which side of a parallel corpus a text belongs to, learnt from the corpus itself.

Enters: the pairs of a corpus. Leaves: which pairs have a side that reads like the other side's language, or like
nothing else on its own side. A side is known by how often any three characters follow one another in it. Needs no list
of languages and no model of any: what most of a side looks like is what it should look like.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heed.text.corpus import Pair

Flags = NDArray[np.bool_]
_BITS = 20  # trigrams are counted by a hash of so many bits:
_FACTORS = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)  # times the three characters, and the topmost bits of the sum
_BEGINNING = 400  # characters are enough to know a language by
_SMOOTHING = 0.5
_ALIKE = 0.3  # nats a trigram: sides that differ by less are one language
_MARGIN = 0.15  # of the difference between the sides, by which a text must lie on the wrong one
_EVIDENCE = 10.0  # nats in all: a name of five letters is no evidence
_UNLIKE = 7.0  # spreads from the median


class Languages:
    """The trigrams of both sides: `learn` from all pairs, `settle` once, then `judge` any of them.

    A text is judged without its own share in the counts, one of each trigram, so that a sentence which stands on the
    wrong side is not a witness for itself.
    """

    def __init__(self) -> None:
        self._counts = np.zeros((2, 1 << _BITS))

    def learn(self, pairs: Sequence[Pair]) -> None:
        """Count the trigrams of some pairs."""
        for side, trigrams in enumerate(_both_sides(pairs)):
            self._counts[side] += np.bincount(trigrams.hashes, minlength=1 << _BITS)

    def settle(self, sample: Sequence[Pair]) -> None:
        """From counts to probabilities, and what is usual in a sample. Nothing is learnt after this."""
        counts, different = self._counts, np.count_nonzero(self._counts.any(0))
        total = counts.sum(1, keepdims=True) + _SMOOTHING * different
        self._own = np.log((np.maximum(counts - 1, 0) + _SMOOTHING) / total)
        self._evidence = self._own - np.log((counts + _SMOOTHING) / total)[::-1]  # larger: more like its own side
        self._difference = (counts * self._evidence).sum(1) / counts.sum(1)  # nats a trigram, on average
        usual = np.array([trigrams.mean(own) for trigrams, own in zip(_both_sides(sample), self._own, strict=True)])
        self._median = np.median(usual, 1)
        self._spread = 1.4826 * np.median(np.abs(usual - self._median[:, None]), 1)  # of a bell curve, the deviation

    @property
    def alike(self) -> bool:
        """Whether the two sides are in one language, as far as can be told: then neither can be the wrong one."""
        return bool(self._difference.min() < _ALIKE)

    def judge(self, pairs: Sequence[Pair]) -> tuple[Flags, Flags]:
        """Whether each side of each pair reads like the other side, and whether like neither; both (2, pairs)."""
        wrong, unlike = (np.zeros((2, len(pairs)), bool) for _ in range(2))
        for side, trigrams in enumerate(_both_sides(pairs)):
            evidence = trigrams.mean(self._evidence[side])
            clear = (evidence < -_MARGIN * self._difference[side]) & (evidence * trigrams.sizes < -_EVIDENCE)
            wrong[side] = clear & (not self.alike)
            unlike[side] = trigrams.mean(self._own[side]) < self._median[side] - _UNLIKE * self._spread[side]
        return wrong, unlike & ~wrong.any(0)


@dataclass(frozen=True)
class _Trigrams:
    """All trigrams of some texts end to end, and where each text's begin."""

    hashes: NDArray[np.int64]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @classmethod
    def of(cls, texts: list[str]) -> "_Trigrams":
        """A trigram for every character, the two line ends around a text included: how words begin it and end it."""
        texts = [f"\n\n{text[:_BEGINNING].lower()}" for text in texts]
        sizes = np.array([len(text) for text in texts])
        codes: NDArray[np.uint32] = np.frombuffer(("".join(texts) + "\n\n").encode("utf-32-le"), "<u4")
        hashes = np.zeros(len(codes) - 2, np.uint32)
        for place, factor in enumerate(_FACTORS):
            hashes += codes[place : place + len(hashes)] * np.uint32(factor)
        return cls((hashes >> np.uint32(32 - _BITS)).astype(np.int64), sizes.cumsum() - sizes, sizes)

    def mean(self, table: NDArray[np.float64]) -> NDArray[np.float64]:
        """The mean of a table's values over the trigrams of each text."""
        return np.add.reduceat(table[self.hashes], self.starts) / self.sizes


def _both_sides(pairs: Sequence[Pair]) -> tuple[_Trigrams, _Trigrams]:
    return _Trigrams.of([pair.source for pair in pairs]), _Trigrams.of([pair.target for pair in pairs])
