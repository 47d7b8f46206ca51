"""Statistics for the corpus checks: batches of pairs, repeated texts, token counts.

Enters: corpora, hashes of texts, a sample. Leaves: indexed pairs, the indices of repeated texts, token counts. Knows no
error types.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from heed.config import DataConfig
from heed.corpus_checks.text_errors import TEXTS, CorpusForm, Integers
from heed.text.corpus import Corpus, OnBadRow, Pair, read_pairs
from heed.text.labels import TextPairEncoder
from heed.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class PairBatch:
    """Pairs that are checked together, and the index of the first."""

    corpus: Corpus
    pairs: list[Pair]
    start: int


def pair_batches(corpus: Corpus, size: int, on_bad_row: OnBadRow, start: int) -> Iterator[PairBatch]:
    """All pairs of a corpus in batches, indexed from `start` on. on_bad_row: as in `read_pairs`."""
    pairs = read_pairs(corpus, on_bad_row)
    while batch := list(islice(pairs, size)):
        yield PairBatch(corpus, batch, start)
        start += len(batch)


def find_repeats(hashes: Integers, indices: Integers) -> tuple[Integers, Integers]:
    """The indices of texts that repeat an earlier one, in order, and the index of the previous occurrence of each."""
    ranked = np.sort(hashes[indices])
    repeated = ranked[1:][ranked[1:] == ranked[:-1]]  # hashes that occur more than once
    indices = indices[in_sorted(hashes[indices], repeated)]
    indices = indices[np.argsort(hashes[indices], kind="stable")]
    same = hashes[indices[1:]] == hashes[indices[:-1]]
    later, previous = indices[1:][same], indices[:-1][same]
    order = np.argsort(later)
    return later[order], previous[order]


def in_sorted(values: Integers, ranked: Integers) -> NDArray[np.bool_]:
    """Which values are in a sorted array; takes less memory than `numpy.isin`."""
    position = np.searchsorted(ranked, values)
    position[position == len(ranked)] = 0
    return ranked[position] == values if len(ranked) else np.zeros(len(values), bool)


def count_tokens(
    sample: list[Pair], form: CorpusForm, data: DataConfig, vocab_size: int
) -> tuple[Integers, tuple[int, int]]:
    """The token counts of a sample's texts with a tokenizer trained on it, and the tokenizers' vocabulary sizes.

    A label is one token; monolingual texts have empty sources.
    """
    sides = [[pair.source for pair in sample], [pair.target for pair in sample]]
    if form != "pairs":
        (side,) = TEXTS[form]
        tokenizer = Tokenizer.train(
            [part for text in sides[side] for part in text.split("\t")], data.tokenizer, vocab_size
        )
        encoder = TextPairEncoder(tokenizer) if form == "labelled" else tokenizer
        tokens = np.full((len(sample), 2), form == "labelled", np.int64)
        tokens[:, side] = [len(ids) for ids in encoder.encode(sides[side])]
        return tokens, (tokenizer.vocab_size, tokenizer.vocab_size)
    if data.has_two_vocabularies:
        source, target = (
            Tokenizer.train(texts, kind, vocab_size) for texts, kind in zip(sides, data.tokenizer_types, strict=True)
        )
    else:
        source = target = Tokenizer.train(sides[0] + sides[1], data.tokenizer, vocab_size)
    lengths = [
        [len(ids) for ids in tokenizer.encode(texts)] for tokenizer, texts in zip((source, target), sides, strict=True)
    ]
    return np.array(lengths).T, (source.vocab_size, target.vocab_size)
