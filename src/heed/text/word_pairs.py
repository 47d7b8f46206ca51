"""Words and their translations, found in parallel text by what occurs together: further training pairs.

A model that has only seen sentences repeats itself or invents something when it is given a single word. So words whose
translation is clear become pairs of their own, with the capital letter and the final stop of the sentences.

Enters: pairs of texts, as a stream. Leaves: pairs of words.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from heed.text.corpus import Pair
from heed.text.lexicon import WORD
from heed.text.normalization import TextStyle
from heed.text.word_cache import Int64Array

Words = Sequence[str]  # of a text, in order

_PAIRS = 50_000  # that are read
_COMBINATIONS = 10_000_000  # of a source word and a target word of the same pair that are counted: 80 MB
_COMBINATIONS_OF_A_PAIR = 100_000  # a longer one says little about single words, and a few would end the reading
_LEAST_COUNT = 5  # texts that contain a word
_LEAST_DICE = 0.4  # 1: two words occur in the same pairs; 0: never in the same


def word_pairs(pairs: Iterable[Pair]) -> list[tuple[str, str]]:
    """Words that are each other's best translation by the Dice coefficient, in the form they have inside sentences."""
    texts = _read(pairs)
    source, target = (_Vocabulary([text[side] for text in texts]) for side in (0, 1))
    size = max(1, len(target.words))
    both = [(source.numbers(left)[:, None] * size + target.numbers(right)).ravel() for left, right in texts]
    codes, together = np.unique(np.concatenate([np.empty(0, np.int64), *both]), return_counts=True)
    rows, columns = np.divmod(codes, size)
    dice = 2 * together / (source.counts[rows] + target.counts[columns])
    best_target, best_source = np.full(len(source.words), -1), np.full(len(target.words), -1)
    order = np.argsort(dice, kind="stable")  # what is assigned last, the highest, remains
    best_target[rows[order]], best_source[columns[order]] = columns[order], rows[order]
    is_clear = (best_target[rows] == columns) & (best_source[columns] == rows) & (dice >= _LEAST_DICE)
    return [
        (source.form(row), target.form(column)) for row, column in zip(rows[is_clear], columns[is_clear], strict=True)
    ]


def written_as(style: TextStyle, word: str) -> tuple[str, str]:
    """A word as a text of its own, as it is inside sentences and as at their start."""
    initial = word[:1].upper() if style.initial > 0.5 else word[:1]
    return word + style.stop, initial + word[1:] + style.stop


def _read(pairs: Iterable[Pair]) -> list[tuple[Words, Words]]:
    """The words of the first pairs that are not very long, of few enough to count all combinations."""
    texts: list[tuple[Words, Words]] = []
    combinations = 0
    for pair in pairs:
        source, target = ([match[0] for match in WORD.finditer(text)] for text in (pair.source, pair.target))
        if len(source) * len(target) > _COMBINATIONS_OF_A_PAIR:
            continue
        combinations += len(source) * len(target)
        if combinations > _COMBINATIONS or len(texts) == _PAIRS:
            break
        texts.append((source, target))
    return texts


class _Vocabulary:
    """The words of one side that are frequent enough, in lower case, and in how many texts each is."""

    def __init__(self, texts: Sequence[Words]) -> None:
        counts = Counter(word for words in texts for word in {word.lower() for word in words})
        self.words = sorted(word for word, count in counts.items() if count >= _LEAST_COUNT)
        self.counts = np.array([counts[word] for word in self.words], dtype=np.int64)
        self._numbers = {word: number for number, word in enumerate(self.words)}
        forms = Counter(word for words in texts for word in words[1:])  # the first has a capital anyway
        self._forms = {word.lower(): word for word, _ in reversed(forms.most_common())}

    def numbers(self, text: Words) -> Int64Array:
        """The numbers of the frequent words in a text, each once."""
        found = {self._numbers[word.lower()] for word in text if word.lower() in self._numbers}
        return np.array(sorted(found), dtype=np.int64)

    def form(self, number: int) -> str:
        """The most frequent form of a word inside a text."""
        return self._forms.get(self.words[number], self.words[number])
