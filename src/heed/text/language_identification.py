"""Which language a text is in, by its character trigrams.

Enters: texts in known languages, or the two sides of a parallel corpus. Leaves: the language of a text with its
probability (`LanguageDetector`), and the pairs of a corpus with a side in the wrong language (`SideLanguages`). Both
compare the log-probability of a text's trigrams under each language. Knows no language beforehand.

A trigram is any three characters in a row, in lower case. Trigrams are counted by a hash of 20 bits, so that a language
is one array, whatever its script.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heed.text.corpus import Pair

Flags = NDArray[np.bool_]
Table = NDArray[np.float64]  # a value for each hash
_BITS = 20
_FACTORS = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)  # times the three characters; the hash is the topmost bits of the sum
_BEGINNING = 1000  # characters of a text that are read

_PROFILE = 400  # trigrams
_RANK_OFFSET = 20.0
_INDEPENDENCE = 0.5  # trigrams overlap: each counts as half an independent observation

_SMOOTHING = 0.5
_ALIKE = 0.3  # nats per trigram: sides that differ by less are one language
_MARGIN = 0.15  # of the difference between the sides, by which a text must lie on the wrong one
_EVIDENCE = 10.0  # nats in all: a name of five letters is no evidence
_UNLIKE = 7.0  # standard deviations from the median


@dataclass(frozen=True)
class _Trigrams:
    """The trigrams of some texts, hashed and concatenated, and how many each text has."""

    hashes: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Iterable[str], *, within_words: bool = False) -> "_Trigrams":
        """A trigram for each character, and two for the line ends before a text: they tell how texts begin and end.

        within_words: leave out trigrams around white space. A word then has those of ` word `, wherever it stands.
        """
        framed = [f"\n\n{text[:_BEGINNING].lower()}" for text in texts]
        joined = "".join(framed) + "\n\n"
        hashes, counts = _hashes(joined), np.array([len(text) for text in framed])
        if within_words:
            inside = np.array([not character.isspace() for character in joined[1:-1]])
            hashes, counts = hashes[inside], np.add.reduceat(inside, counts.cumsum() - counts, dtype=np.int64)
        return cls(hashes, counts)

    def sums(self, table: Table) -> NDArray[np.float64]:
        """For each text the sum of a table's values over its trigrams."""
        totals = np.concatenate(([0.0], np.cumsum(table[self.hashes])))
        ends = self.counts.cumsum()
        return totals[ends] - totals[ends - self.counts]

    def means(self, table: Table) -> NDArray[np.float64]:
        """For each text the mean of a table's values over its trigrams; 0 where it has none."""
        return self.sums(table) / np.maximum(self.counts, 1)


def _hashes(text: str) -> NDArray[np.int64]:
    """A hash for every three characters in a row."""
    codes: NDArray[np.uint32] = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    sums = np.zeros(max(len(codes) - 2, 0), np.uint32)
    for offset, factor in enumerate(_FACTORS):
        sums += codes[offset : offset + len(sums)] * np.uint32(factor)
    return (sums >> np.uint32(32 - _BITS)).astype(np.int64)


def _with_letters(text: str) -> list[str]:
    """The words of a text that have a letter, in lower case: numbers and signs are in no language."""
    return [word for word in text[:_BEGINNING].lower().split() if any(map(str.isalpha, word))]


def trigram_profile(texts: Iterable[str]) -> str:
    """The most frequent trigrams of some texts, the most frequent first: 1,200 characters to store with a model."""
    spaced = (f" {word} " for text in texts for word in _with_letters(text))
    counts = Counter(word[start : start + 3] for word in spaced for start in range(len(word) - 2))
    return "".join(sorted(counts, key=lambda trigram: (-counts[trigram], trigram))[:_PROFILE])


class LanguageDetector:
    """Tells languages apart by the profile of each.

    A profile has ranks and no counts: the nth trigram is taken to have a probability proportional to 1 / (n + 20), as
    in any language, more or less; whatever is not in the profile is as rare as the 800th.
    """

    def __init__(self, profiles: Mapping[str, str]) -> None:
        ranks = np.arange(2 * _PROFILE + 1) + _RANK_OFFSET
        log_probs = -np.log(ranks) - np.log((1 / ranks[:-1]).sum())
        self._log_probs: dict[str, Table] = {}
        for language, ranked in profiles.items():
            known = _hashes(ranked)[::3]
            table = self._log_probs[language] = np.full(1 << _BITS, log_probs[-1])
            table[known[::-1]] = log_probs[: len(known)][::-1]  # of two with one hash, the more frequent

    @property
    def languages(self) -> list[str]:
        """The languages that have a profile."""
        return list(self._log_probs)

    def detect(self, text: str, among: Iterable[str] | None = None) -> list[tuple[str, float]]:
        """Languages with their probabilities in percent, the most probable first; all 0 for a text without letters.

        among: the languages to choose from; those without a profile are left out.
        """
        candidates = [language for language in (among or self._log_probs) if language in self._log_probs]
        trigrams = _Trigrams.of([f" {' '.join(_with_letters(text))} "], within_words=True)
        if not len(trigrams.hashes):
            return [(language, 0.0) for language in candidates]
        totals = {language: _INDEPENDENCE * trigrams.sums(self._log_probs[language]).item() for language in candidates}
        best = max(totals.values(), default=0.0)
        shares = {language: math.exp(total - best) for language, total in totals.items()}
        ranked = sorted(candidates, key=lambda language: -shares[language])
        return [(language, round(100 * shares[language] / sum(shares.values()), 1)) for language in ranked]


class SideLanguages:
    """The languages of the two sides of a parallel corpus: `learn` from all pairs, `settle` once, then `judge` any.

    What most of a side looks like is what all of it should look like. A text is judged without its own share in the
    counts, one of each trigram, so that a sentence on the wrong side is no evidence for itself.
    """

    def __init__(self) -> None:
        self._counts = np.zeros((2, 1 << _BITS))

    def learn(self, pairs: Sequence[Pair]) -> None:
        """Count the trigrams of more pairs."""
        for side, trigrams in enumerate(_both_sides(pairs)):
            self._counts[side] += np.bincount(trigrams.hashes, minlength=1 << _BITS)

    def settle(self, sample: Sequence[Pair]) -> None:
        """Turn counts into log-probabilities, and measure what is usual on each side of a sample."""
        counts, distinct = self._counts, np.count_nonzero(self._counts.any(0))
        totals = counts.sum(1, keepdims=True) + _SMOOTHING * distinct
        self._own = np.log((np.maximum(counts - 1, 0) + _SMOOTHING) / totals)
        self._evidence = self._own - np.log((counts + _SMOOTHING) / totals)[::-1]  # larger: more like its own side
        self._difference = (counts * self._evidence).sum(1) / np.maximum(counts.sum(1), 1)  # nats per trigram
        usual = np.array([trigrams.means(own) for trigrams, own in zip(_both_sides(sample), self._own, strict=True)])
        self._median = np.median(usual, 1)
        # The median of absolute deviations is the standard deviation of a normal distribution over 1.4826.
        self._deviation = 1.4826 * np.median(np.abs(usual - self._median[:, None]), 1)

    @property
    def alike(self) -> bool:
        """Whether both sides are in one language, as far as trigrams say: then no text is on the wrong side."""
        return bool(self._difference.min() < _ALIKE)

    def judge(self, pairs: Sequence[Pair]) -> tuple[Flags, Flags]:
        """Which sides are in the other side's language, and which are like neither side; both (2, pairs)."""
        wrong, unlike = (np.zeros((2, len(pairs)), bool) for _ in range(2))
        for side, trigrams in enumerate(_both_sides(pairs)):
            evidence = trigrams.sums(self._evidence[side])
            margin = -_MARGIN * self._difference[side] * trigrams.counts
            wrong[side] = (evidence < margin) & (evidence < -_EVIDENCE) & (not self.alike)
            unlike[side] = trigrams.means(self._own[side]) < self._median[side] - _UNLIKE * self._deviation[side]
        return wrong, unlike & ~wrong.any(0)


def _both_sides(pairs: Sequence[Pair]) -> tuple[_Trigrams, _Trigrams]:
    return _Trigrams.of([pair.source for pair in pairs]), _Trigrams.of([pair.target for pair in pairs])
