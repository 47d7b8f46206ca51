"""BPE-dropout in compiled code: `csrc/bpe.h` from Python.

The twin is `text.bpe_dropout.BpeDropout`, which walks along steps that it remembers; this merges every word anew, twice
as quick all the same, and other threads of Python go on meanwhile.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heed.backends.cpu.library import native
from heed.backends.cpu.pointers import array_pointer
from heed.text.bpe_dropout import BpeDropout
from heed.text.tokenizer import Tokenizer

_MERGE = np.dtype([("pair", "i8"), ("rank", "i4"), ("merged", "i4")])  # what the C calls a `Merge`
_EMPTY = (-1, 2**31 - 1, 0)


class _Plan(NamedTuple):
    """A sentence before anything is merged: the ids of its bytes, and how many of them each word has."""

    bytes: NDArray[np.int32]
    words: NDArray[np.int64]


class CompiledBpeDropout(BpeDropout):
    """Cuts sentences anew, as `BpeDropout` does."""

    def __init__(self, tokenizer: Tokenizer, p: float, cache_size: int = 2**18) -> None:
        super().__init__(tokenizer, p, cache_size)
        self._table = _table(self._merges)
        self._bits = len(self._table).bit_length() - 1
        self._plans: dict[str, _Plan] = {}

    def __call__(self, sentences: Iterable[Sequence[int]], keys: Iterable[str]) -> list[list[int]]:
        """The ids of each sentence as its key decides."""
        texts = self._texts(sentences)
        dropped = self._drop_counts(texts, keys)
        plans = [self._plans.get(text) or self._plan(text) for text in texts]
        if not plans:
            return []
        in_bytes, words = (np.concatenate(all_) for all_ in zip(*plans, strict=True))
        words_of = np.array([len(plan.words) for plan in plans], np.int64)
        ranks = np.empty(words.max(initial=0), np.int32)
        found, counts = np.empty_like(in_bytes), np.empty_like(words_of)
        native().heed_cut(
            array_pointer(in_bytes, np.int32, int(words.sum())), array_pointer(words, np.int64, int(words_of.sum())),
            array_pointer(words_of, np.int64, len(plans)), array_pointer(dropped, np.int64, len(in_bytes)),
            array_pointer(self._table, _MERGE, 2**self._bits), array_pointer(ranks, np.int32, len(ranks)),
            array_pointer(found, np.int32, len(in_bytes)), array_pointer(counts, np.int64, len(plans)),
            len(plans), self._bits,
        )  # fmt: skip
        ends = accumulate(chain([0], counts.tolist()))
        ids = found[: counts.sum()].tolist()
        return [ids[start:end] for start, end in pairwise(ends)]

    def _plan(self, text: str) -> _Plan:
        words = self._words_as_bytes(text)
        plan = _Plan(
            np.fromiter(chain.from_iterable(words), np.int32, len(text)),
            np.fromiter(map(len, words), np.int64, len(words)),
        )
        if len(self._plans) < self._cache_size:
            self._plans[text] = plan
        return plan


def _table(merges: Mapping[tuple[int, int], tuple[int, int]]) -> NDArray[Any]:
    """Merges where `merge_of` looks for them: at a hash of the pair, or in the first empty place after it."""
    bits = max(1, (2 * len(merges)).bit_length())
    table = np.full(2**bits, np.array(_EMPTY, _MERGE))
    taken = set()
    for (left, right), (rank, merged) in merges.items():
        pair = left << 32 | right
        place = (pair * 0x9E3779B97F4A7C15 & 2**64 - 1) >> (64 - bits)
        while place in taken:
            place = (place + 1) % len(table)
        taken.add(place)
        table[place] = (pair, rank, merged)
    return table
