"""Texts to ids through a cache of encoded words.

Enters: texts. Leaves: the ids that a tokenizer gives them, all texts concatenated. Looking a word up takes a small part
of the time that tokenising it takes, and texts are made of few distinct words.

A tokenizer that splits text into words gives a word the same ids wherever it stands. A space that something other than
white space follows begins a word, whatever stands before it: there a text is split, and nowhere else. So `well,` is one
word here though the tokenizer makes two of it, and a text without spaces is one word.
"""

import re
from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]

_BEFORE_A_WORD = re.compile(r"(?!^) (?=\S)")


class ConcatenatedIds(NamedTuple):
    """The ids of all texts end to end, and how many each has."""

    ids: Int64Array
    lengths: Int64Array


class WordCache:
    """Encodes texts word by word, from a cache of encoded words.

    encode: the ids of each text, which puts a space before it. remembered: when the words known have more ids than
    that, all are forgotten before the next texts; a matter of speed and of memory, no result depends on it.
    """

    def __init__(self, encode: Callable[[Sequence[str]], list[list[int]]], remembered: int = 2**19) -> None:
        self._encode = encode
        self._remembered = remembered
        self._forget()

    def _forget(self) -> None:
        self._numbers = _Numbers()
        self._ids = self._ends = np.zeros(0, np.int64)  # of the words in the order of their numbers, end to end

    def __call__(self, texts: Sequence[str]) -> ConcatenatedIds:
        """The ids of these texts, concatenated, with the length of each."""
        if len(self._ids) > self._remembered:
            self._forget()
        number_of = self._numbers.__getitem__
        found: list[int] = []
        counts = []
        for text in texts:
            words = _words(text)
            counts.append(len(words))
            found += map(number_of, words)
        self._learn()
        ids, lengths = gather_texts(self._ids, self._ends, np.array(found, np.int64))
        ends = np.concatenate(([0], np.cumsum(lengths)))[np.cumsum(counts, dtype=np.int64)]
        return ConcatenatedIds(ids, np.diff(ends, prepend=0))

    def _learn(self) -> None:
        """Encode the words that have a number and no ids yet."""
        new = len(self._numbers) - len(self._ends)
        ids, lengths = concatenate_ids(self._encode(list(islice(reversed(self._numbers), new))[::-1]))
        self._ends = np.concatenate((self._ends, len(self._ids) + np.cumsum(lengths)))
        self._ids = np.concatenate((self._ids, ids))


class _Numbers(dict[str, int]):
    """Words to numbers from 0 on; a word that has none is given the next."""

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number


def _words(text: str) -> list[str]:
    words = text.split(" ")
    if "" in words or not text.isprintable():  # two spaces, one at an end, or white space that is no space: rare
        return _BEFORE_A_WORD.split(text) if text else []
    return words


def concatenate_ids(rows: Sequence[Sequence[int]]) -> ConcatenatedIds:
    """Ids one list a text, end to end."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return ConcatenatedIds(np.fromiter(chain.from_iterable(rows), np.int64, lengths.sum()), lengths)


def gather_texts(ids: NDArray[Any], ends: Int64Array, numbers: Int64Array) -> ConcatenatedIds:
    """Of texts that lie end to end those of these numbers, end to end again."""
    starts = np.where(numbers > 0, ends[numbers - 1], 0)
    lengths = ends[numbers] - starts
    before = np.cumsum(lengths) - lengths
    places = np.arange(lengths.sum()) + np.repeat(starts - before, lengths)
    return ConcatenatedIds(ids[places].astype(np.int64), lengths)
