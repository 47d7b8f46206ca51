"""Words and their translations, found in parallel text by what occurs together: further training pairs.

A model that has only seen sentences repeats itself or invents something when it is given a single word. So words whose
translation is clear become pairs of their own, with the capital letter and the final stop of the sentences.

Enters: pairs of texts, as a stream. Leaves: pairs of words.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import islice

from heed.text.corpus import Pair
from heed.text.lexicon import WORD
from heed.text.normalization import TextStyle

_PAIRS = 50_000  # that are read
_LEAST_COUNT = 5  # pairs that contain a word
_LEAST_DICE = 0.4  # 1: two words occur in the same pairs; 0: never in the same


def word_pairs(pairs: Iterable[Pair]) -> list[tuple[str, str]]:
    """Words that are each other's best translation by the Dice coefficient, in the form they have inside sentences."""
    texts = [(_words(pair.source), _words(pair.target)) for pair in islice(pairs, _PAIRS)]
    forms = tuple(_usual_forms(text[side] for text in texts) for side in (0, 1))
    contained = [tuple({word.lower() for word in words} for words in text) for text in texts]
    counts = tuple(Counter(word for text in contained for word in text[side]) for side in (0, 1))
    frequent = tuple({word for word, count in of_side.items() if count >= _LEAST_COUNT} for of_side in counts)
    together = Counter(
        (source, target) for text in contained for source in text[0] & frequent[0] for target in text[1] & frequent[1]
    )
    scores = {
        (source, target): 2 * count / (counts[0][source] + counts[1][target])
        for (source, target), count in together.items()
    }
    best: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for source, target in sorted(scores, key=scores.__getitem__):  # the highest comes last
        best[0][source], best[1][target] = target, source
    return [
        (forms[0].get(source, source), forms[1].get(target, target))
        for source, target in sorted(best[0].items())
        if best[1][target] == source and scores[source, target] >= _LEAST_DICE
    ]


def written_as(style: TextStyle, word: str) -> tuple[str, str]:
    """A word as a text of its own, as it is inside sentences and as at their start."""
    initial = word[:1].upper() if style.initial > 0.5 else word[:1]
    return word + style.stop, initial + word[1:] + style.stop


def _words(text: str) -> list[str]:
    return [match[0] for match in WORD.finditer(text)]


def _usual_forms(texts: Iterable[list[str]]) -> dict[str, str]:
    """The most frequent form of each word inside a text, by its form in lower case."""
    forms = Counter(word for words in texts for word in words[1:])
    return {word.lower(): word for word, _ in reversed(forms.most_common())}
