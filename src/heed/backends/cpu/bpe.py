"""BPE-dropout in compiled C: `csrc/bpe.h` from Python.

The reference is `text.bpe_dropout.BpeDropout`, which caches the states of words. This one segments every word from its
bytes, in half the time all the same, and releases the GIL meanwhile.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heed.backends.cpu.library import engine
from heed.backends.cpu.pointers import array_pointer
from heed.text.bpe_dropout import BpeDropout
from heed.text.tokenizer import Tokenizer

_MERGE = np.dtype([("pair", "i8"), ("rank", "i4"), ("merged", "i4")])  # `HeedMerge` in C
_EMPTY = (-1, 2**31 - 1, 0)


class _ByteSentence(NamedTuple):
    """A sentence before any merge: the ids of its bytes, and the number of bytes of each word."""

    bytes: NDArray[np.int32]
    word_lengths: NDArray[np.int64]


class NativeBpeDropout(BpeDropout):
    """Re-segments sentences as `BpeDropout` does, in C."""

    def __init__(self, tokenizer: Tokenizer, p: float, cache_size: int = 2**18) -> None:
        super().__init__(tokenizer, p, cache_size)
        self._table = _hash_table(self._merges)
        self._bits = len(self._table).bit_length() - 1
        self._byte_sentences: dict[str, _ByteSentence] = {}

    def __call__(self, sentences: Iterable[Sequence[int]], keys: Iterable[str]) -> list[list[int]]:
        """Re-segment each sentence, seeded by its key."""
        texts = self._texts(sentences)
        dropped = self._drop_counts(texts, keys)
        batch = [self._byte_sentences.get(text) or self._split(text) for text in texts]
        if not batch:
            return []
        symbols, word_lengths = (np.concatenate(arrays) for arrays in zip(*batch, strict=True))
        word_counts = np.array([len(sentence.word_lengths) for sentence in batch], np.int64)
        ranks = np.empty(word_lengths.max(initial=0), np.int32)
        subwords, counts = np.empty_like(symbols), np.empty_like(word_counts)
        engine().bpe(
            array_pointer(symbols, np.int32, int(word_lengths.sum())),
            array_pointer(word_lengths, np.int64, int(word_counts.sum())),
            array_pointer(word_counts, np.int64, len(batch)), array_pointer(dropped, np.int64, len(symbols)),
            array_pointer(self._table, _MERGE, 2**self._bits), array_pointer(ranks, np.int32, len(ranks)),
            array_pointer(subwords, np.int32, len(symbols)), array_pointer(counts, np.int64, len(batch)),
            len(batch), self._bits,
        )  # fmt: skip
        ends = accumulate(chain([0], counts.tolist()))
        ids = subwords[: counts.sum()].tolist()
        return [ids[start:end] for start, end in pairwise(ends)]

    def _split(self, text: str) -> _ByteSentence:
        words = self._words_as_bytes(text)
        sentence = _ByteSentence(
            np.fromiter(chain.from_iterable(words), np.int32, len(text)),
            np.fromiter(map(len, words), np.int64, len(words)),
        )
        if len(self._byte_sentences) < self._cache_size:
            self._byte_sentences[text] = sentence
        return sentence


def _hash_table(merges: Mapping[tuple[int, int], tuple[int, int]]) -> NDArray[Any]:
    """The merges in a hash table with linear probing, as `find_merge` of `csrc/bpe.h` reads it."""
    bits = max(1, (2 * len(merges)).bit_length())
    table = np.full(2**bits, np.array(_EMPTY, _MERGE))
    taken = set()
    for (left, right), (rank, merged) in merges.items():
        pair = left << 32 | right
        slot = (pair * 0x9E3779B97F4A7C15 & 2**64 - 1) >> (64 - bits)
        while slot in taken:
            slot = (slot + 1) % len(table)
        taken.add(slot)
        table[slot] = (pair, rank, merged)
    return table
