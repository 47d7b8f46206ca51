"""Which language a text is in, by the three-letter groups that are frequent in it.

Enters: a sample of each language. Leaves: of a text, the likeliest language and how sure that is. A language is known
by its most frequent trigrams in order, a string of 1,200 characters: small enough to travel with a model. How frequent
the nth of them is, is the same in all languages, more or less: c / (n + 20). Knows no language beforehand.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping

_MOST = 400
_OFFSET = 20.0
_BEGINNING = 1000  # characters are enough to know a language by
_DEPENDENCE = 0.5  # trigrams overlap: each is half a witness


def profile(texts: Iterable[str]) -> str:
    """The most frequent trigrams of some texts, the most frequent first, three characters each."""
    counts = Counter(trigram for text in texts for trigram in _trigrams(text))
    ranked = sorted(counts, key=lambda trigram: (-counts[trigram], trigram))
    return "".join(ranked[:_MOST])


class Detector:
    """Tells languages apart, given the profile of each."""

    def __init__(self, profiles: Mapping[str, str]) -> None:
        weight = sum(1 / (place + _OFFSET) for place in range(2 * _MOST))
        self._unknown = math.log(1 / (2 * _MOST + _OFFSET) / weight)
        self._known = {
            language: {
                ranked[place : place + 3]: math.log(1 / (place / 3 + _OFFSET) / weight)
                for place in range(0, len(ranked), 3)
            }
            for language, ranked in profiles.items()
        }

    @property
    def languages(self) -> list[str]:
        """Those that can be told apart."""
        return list(self._known)

    def detect(self, text: str, among: Iterable[str] | None = None) -> list[tuple[str, float]]:
        """Languages and how likely each is, in percent, the likeliest first. Without letters nothing is likely: 0."""
        candidates = [language for language in (among or self._known) if language in self._known]
        seen = list(_trigrams(text))
        if not seen:
            return [(language, 0.0) for language in candidates]
        totals = {
            language: _DEPENDENCE * sum(self._known[language].get(trigram, self._unknown) for trigram in seen)
            for language in candidates
        }
        best = max(totals.values(), default=0.0)
        shares = {language: math.exp(total - best) for language, total in totals.items()}
        whole = sum(shares.values())
        ranked = sorted(candidates, key=lambda language: -shares[language])
        return [(language, round(100 * shares[language] / whole, 1)) for language in ranked]


def _trigrams(text: str) -> Iterable[str]:
    """Those of each word, a space before and after it; what has no letter has none."""
    for word in text[:_BEGINNING].lower().split():
        if any(character.isalpha() for character in word):
            spaced = f" {word} "
            yield from (spaced[place : place + 3] for place in range(len(spaced) - 2))
