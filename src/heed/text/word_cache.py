"""Encodes texts word by word through a cache of the token ids of each distinct word.

Enters: texts. Leaves: the ids that a tokenizer gives them, all texts concatenated. Looking a word up takes a fraction
of the time of tokenising it, and texts have few distinct words.

A tokenizer with a pre-tokenizer encodes a word the same way wherever it occurs. Texts are split only before a space
that is followed by something other than white space: the pre-tokenizer always starts a word there. So `well,` is one
word here though the pre-tokenizer makes two of it, and a text without spaces is one word.
"""

import re
from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]

_WORD_BOUNDARY = re.compile(r"(?!^) (?=\S)")


class ConcatenatedIds(NamedTuple):
    """The token ids of all texts in one array, and the number of ids of each text."""

    ids: Int64Array
    lengths: Int64Array


class WordCache:
    """Encodes texts word by word and caches the ids of each word.

    encode: encodes a list of texts and prepends a space to each. capacity: once the cached words have more ids than
    this, the cache is emptied before the next texts; results do not depend on it.
    """

    def __init__(self, encode: Callable[[Sequence[str]], list[list[int]]], capacity: int = 2**19) -> None:
        self._encode = encode
        self._capacity = capacity
        self._clear()

    def _clear(self) -> None:
        self._word_indices = _WordIndices()
        self._ids = self._ends = np.zeros(0, np.int64)  # ids of all words, concatenated, and the end of each word

    def __call__(self, texts: Sequence[str]) -> ConcatenatedIds:
        if len(self._ids) > self._capacity:
            self._clear()
        word_index = self._word_indices.__getitem__
        indices: list[int] = []
        counts = []
        for text in texts:
            words = _words(text)
            counts.append(len(words))
            indices += map(word_index, words)
        self._encode_new_words()
        ids, lengths = gather_texts(self._ids, self._ends, np.array(indices, np.int64))
        ends = np.concatenate(([0], np.cumsum(lengths)))[np.cumsum(counts, dtype=np.int64)]
        return ConcatenatedIds(ids, np.diff(ends, prepend=0))

    def _encode_new_words(self) -> None:
        new = len(self._word_indices) - len(self._ends)
        ids, lengths = concatenate_ids(self._encode(list(islice(reversed(self._word_indices), new))[::-1]))
        self._ends = np.concatenate((self._ends, len(self._ids) + np.cumsum(lengths)))
        self._ids = np.concatenate((self._ids, ids))


class _WordIndices(dict[str, int]):
    """The index of each word; a lookup of a new word assigns it the next index."""

    def __missing__(self, word: str) -> int:
        index = self[word] = len(self)
        return index


def _words(text: str) -> list[str]:
    words = text.split(" ")
    if "" in words or not text.isprintable():  # rare: repeated, leading or trailing spaces, or other white space
        return _WORD_BOUNDARY.split(text) if text else []
    return words


def concatenate_ids(rows: Sequence[Sequence[int]]) -> ConcatenatedIds:
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return ConcatenatedIds(np.fromiter(chain.from_iterable(rows), np.int64, lengths.sum()), lengths)


def gather_texts(ids: NDArray[Any], ends: Int64Array, indices: Int64Array) -> ConcatenatedIds:
    """Select texts by index from concatenated texts that end at `ends`."""
    starts = np.where(indices > 0, ends[indices - 1], 0)
    lengths = ends[indices] - starts
    new_starts = np.cumsum(lengths) - lengths
    offsets = np.arange(lengths.sum()) + np.repeat(starts - new_starts, lengths)
    return ConcatenatedIds(ids[offsets].astype(np.int64), lengths)
