"""Identifies the language of texts by character trigrams.

Enters: texts in known languages, or the two sides of a parallel corpus. Leaves: the language of a text with its
probability (`LanguageDetector`), and the pairs of a corpus with a side in the wrong language (`SideLanguages`). Both
compare the log-probability of a text's trigrams under each language. There is no built-in language.

Trigrams are lower-cased and hashed to 20 bits, so that a language is one array, whatever its script.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heed.text.corpus import Pair

Flags = NDArray[np.bool_]
HashTable = NDArray[np.float64]  # one value per trigram hash
_HASH_BITS = 20
_FACTORS = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)  # one per character; the hash is the top bits of the weighted sum
_MAX_CHARACTERS = 1000  # of each text are used

_PROFILE_SIZE = 400  # trigrams
_RANK_OFFSET = 20.0
_INDEPENDENCE = 0.5  # trigrams overlap: each counts as half an independent observation

_SMOOTHING = 0.5
_MIN_DIFFERENCE = 0.3  # nats per trigram: sides that differ by less are in the same language
_MARGIN = 0.15  # as a share of the difference between the sides, for a text to count as on the wrong side
_MIN_EVIDENCE = 10.0  # nats per text: a name of five letters is not enough
_OUTLIER = 7.0  # standard deviations from the median


@dataclass(frozen=True)
class _Trigrams:
    """The hashed trigrams of several texts, concatenated, and the number of trigrams of each text."""

    hashes: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def from_texts(cls, texts: Iterable[str], *, within_words: bool = False) -> "_Trigrams":
        """Hash trigrams of texts, padded by line ends so that the start and end of a text count too.

        within_words: leave out trigrams across white space, so that the context of a word does not matter.
        """
        padded = [f"\n\n{text[:_MAX_CHARACTERS].lower()}" for text in texts]
        joined = "".join(padded) + "\n\n"
        hashes, counts = _hashes(joined), np.array([len(text) for text in padded])
        if within_words:
            inside = np.array([not character.isspace() for character in joined[1:-1]])
            hashes, counts = hashes[inside], np.add.reduceat(inside, counts.cumsum() - counts, dtype=np.int64)
        return cls(hashes, counts)

    def sums(self, table: HashTable) -> NDArray[np.float64]:
        """The sum of the table's values over the trigrams of each text."""
        totals = np.concatenate(([0.0], np.cumsum(table[self.hashes])))
        ends = self.counts.cumsum()
        return totals[ends] - totals[ends - self.counts]

    def means(self, table: HashTable) -> NDArray[np.float64]:
        """The mean of the table's values over the trigrams of each text; 0 for a text without trigrams."""
        return self.sums(table) / np.maximum(self.counts, 1)


def _hashes(text: str) -> NDArray[np.int64]:
    """The hash of every trigram of a text."""
    codes: NDArray[np.uint32] = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    sums = np.zeros(max(len(codes) - 2, 0), np.uint32)
    for offset, factor in enumerate(_FACTORS):
        sums += codes[offset : offset + len(sums)] * np.uint32(factor)
    return (sums >> np.uint32(32 - _HASH_BITS)).astype(np.int64)


def _words_with_letters(text: str) -> list[str]:
    """The lower-cased words of a text that have a letter: numbers and symbols belong to no language."""
    return [word for word in text[:_MAX_CHARACTERS].lower().split() if any(map(str.isalpha, word))]


def trigram_profile(texts: Iterable[str]) -> str:
    """The 400 most frequent trigrams of texts, by frequency: 1,200 characters that are stored with a model."""
    padded = (f" {word} " for text in texts for word in _words_with_letters(text))
    counts = Counter(word[start : start + 3] for word in padded for start in range(len(word) - 2))
    return "".join(sorted(counts, key=lambda trigram: (-counts[trigram], trigram))[:_PROFILE_SIZE])


class LanguageDetector:
    """Identifies the language of a text by the trigram profiles of the languages.

    A profile has ranks but no counts: the trigram of rank n gets a probability proportional to 1 / (n + 20), which fits
    most languages; a trigram outside the profile gets that of rank 800.
    """

    def __init__(self, profiles: Mapping[str, str]) -> None:
        ranks = np.arange(2 * _PROFILE_SIZE + 1) + _RANK_OFFSET
        log_probs = -np.log(ranks) - np.log((1 / ranks[:-1]).sum())
        self._log_probs: dict[str, HashTable] = {}
        for language, ranked in profiles.items():
            hashes = _hashes(ranked)[::3]
            table = self._log_probs[language] = np.full(1 << _HASH_BITS, log_probs[-1])
            table[hashes[::-1]] = log_probs[: len(hashes)][::-1]  # on a collision the more frequent trigram wins

    def detect(self, text: str, allowed: Iterable[str] | None = None) -> list[tuple[str, float]]:
        """Languages and their probabilities in percent, most probable first; all 0 for a text without letters.

        allowed: the languages to choose from; those without a profile are left out.
        """
        candidates = [language for language in (allowed or self._log_probs) if language in self._log_probs]
        trigrams = _Trigrams.from_texts([f" {' '.join(_words_with_letters(text))} "], within_words=True)
        if not len(trigrams.hashes):
            return [(language, 0.0) for language in candidates]
        totals = {language: _INDEPENDENCE * trigrams.sums(self._log_probs[language]).item() for language in candidates}
        best = max(totals.values(), default=0.0)
        shares = {language: math.exp(total - best) for language, total in totals.items()}
        ranked = sorted(candidates, key=lambda language: -shares[language])
        return [(language, round(100 * shares[language] / sum(shares.values()), 1)) for language in ranked]


class SideLanguages:
    """Finds texts in the wrong language in a parallel corpus: `add_counts` of all pairs, `fit` once, then `classify`.

    The language of a side is that of most of its texts. A text is scored without its own contribution to the counts
    (one of each trigram), so that a sentence on the wrong side is no evidence for itself.
    """

    def __init__(self) -> None:
        self._counts = np.zeros((2, 1 << _HASH_BITS))

    def add_counts(self, pairs: Sequence[Pair]) -> None:
        for side, trigrams in enumerate(_both_sides(pairs)):
            self._counts[side] += np.bincount(trigrams.hashes, minlength=1 << _HASH_BITS)

    def fit(self, sample: Sequence[Pair]) -> None:
        """Turn counts into log-probabilities; estimate their median and deviation on each side from a sample."""
        counts, distinct = self._counts, np.count_nonzero(self._counts.any(0))
        totals = counts.sum(1, keepdims=True) + _SMOOTHING * distinct
        self._log_probs = np.log((np.maximum(counts - 1, 0) + _SMOOTHING) / totals)
        # The log-likelihood ratio of a text's own side over the other.
        self._evidence = self._log_probs - np.log((counts + _SMOOTHING) / totals)[::-1]
        self._difference = (counts * self._evidence).sum(1) / np.maximum(counts.sum(1), 1)  # nats per trigram
        sides = zip(_both_sides(sample), self._log_probs, strict=True)
        means = np.array([trigrams.means(log_probs) for trigrams, log_probs in sides])
        self._median = np.median(means, 1)
        # 1.4826 * median absolute deviation estimates the standard deviation of a normal distribution.
        self._deviation = 1.4826 * np.median(np.abs(means - self._median[:, None]), 1)

    @property
    def same_language(self) -> bool:
        """Whether both sides have too similar trigrams to tell which side a text belongs to."""
        return bool(self._difference.min() < _MIN_DIFFERENCE)

    def classify(self, pairs: Sequence[Pair]) -> tuple[Flags, Flags]:
        """Which texts are in the other side's language, and which are outliers on their side; each (2, pairs)."""
        wrong, outlier = (np.zeros((2, len(pairs)), bool) for _ in range(2))
        for side, trigrams in enumerate(_both_sides(pairs)):
            evidence = trigrams.sums(self._evidence[side])
            margin = -_MARGIN * self._difference[side] * trigrams.counts
            wrong[side] = (evidence < margin) & (evidence < -_MIN_EVIDENCE) & (not self.same_language)
            outlier[side] = (
                trigrams.means(self._log_probs[side]) < self._median[side] - _OUTLIER * self._deviation[side]
            )
        return wrong, outlier & ~wrong.any(0)


def _both_sides(pairs: Sequence[Pair]) -> tuple[_Trigrams, _Trigrams]:
    return _Trigrams.from_texts([pair.source for pair in pairs]), _Trigrams.from_texts([pair.target for pair in pairs])
