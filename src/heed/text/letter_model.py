"""A letter trigram model of a vocabulary: how probable a word is that the vocabulary does not contain.

`ringing` is as likely a new word as any other; `fitls` is not, so it is probably misspelt. Enters: words. Leaves: the
log-probability of any word.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from math import log

_BOUNDARY = "  "  # between words; a word has none inside
_WEIGHT = 5  # occurrences of a context from which its own statistics count more than those of a shorter one
_UNSEEN = 0.5  # occurrences of a letter that no word contains


class LetterModel:
    """Letter trigrams, interpolated with bigrams and single letters (Witten and Bell 1991, with a fixed weight)."""

    def __init__(self, words: Iterable[str]) -> None:
        text = _BOUNDARY.join(("", *words, ""))
        self._counts = Counter(text)
        self._counts.update(map("".join, pairwise(text)))
        self._counts.update(map("".join, zip(text, text[1:], text[2:], strict=False)))
        self._total = max(len(text), 1)

    def log_prob(self, word: str) -> float:
        text = f"{_BOUNDARY}{word}{_BOUNDARY[0]}"
        return sum(log(self._probability(text[end - 3 : end])) for end in range(3, len(text) + 1))

    def _probability(self, trigram: str) -> float:
        """The probability of the last letter after the first two."""
        probability = max(self._counts[trigram[2]], _UNSEEN) / self._total
        for context in (trigram[1], trigram[:2]):
            count = self._counts[context]
            seen = self._counts[context + trigram[2]]
            probability = (seen + _WEIGHT * probability) / (count + _WEIGHT)
        return probability
