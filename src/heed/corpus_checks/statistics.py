"""What the corpus checks read and count: batches of pairs, texts that occur again, tokens per text.

Enters: corpora, hashes of texts, a sample. Leaves: numbered pairs, the numbers of repetitions, token counts. Knows no
kind of fault.
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
    """Pairs that are looked at together, and the number of the first."""

    corpus: Corpus
    pairs: list[Pair]
    start: int


def pair_batches(corpus: Corpus, size: int, skip: OnBadRow, start: int) -> Iterator[PairBatch]:
    """All pairs of a corpus, numbered from `start` on. skip: as `read_pairs` has it."""
    pairs = read_pairs(corpus, skip)
    while piece := list(islice(pairs, size)):
        yield PairBatch(corpus, piece, start)
        start += len(piece)


def find_repeats(hashes: Integers, numbers: Integers) -> tuple[Integers, Integers]:
    """Those of the numbered texts that were there before, in order, and where each was the last time before."""
    ranked = np.sort(hashes[numbers])
    numbers = numbers[in_sorted(hashes[numbers], ranked[1:][ranked[1:] == ranked[:-1]])]  # those that repeat
    numbers = numbers[np.argsort(hashes[numbers], kind="stable")]
    same = hashes[numbers[1:]] == hashes[numbers[:-1]]
    later, before = numbers[1:][same], numbers[:-1][same]
    order = np.argsort(later)
    return later[order], before[order]


def in_sorted(values: Integers, ranked: Integers) -> NDArray[np.bool_]:
    """Which of the values are among others, which are sorted; in less memory than numpy's isin."""
    place = np.searchsorted(ranked, values)
    place[place == len(ranked)] = 0
    return ranked[place] == values if len(ranked) else np.zeros(len(values), bool)


def count_tokens(
    sample: list[Pair], form: CorpusForm, data: DataConfig, suitable: int
) -> tuple[Integers, tuple[int, int]]:
    """The token counts of a sample's texts with a tokenizer trained on it, and the tokenizers' vocabulary sizes.

    A label is one token; texts alone have sources of none.
    """
    sides = [[pair.source for pair in sample], [pair.target for pair in sample]]
    size = data.vocab_size or suitable
    if form != "pairs":
        (side,) = TEXTS[form]
        one = Tokenizer.train([part for text in sides[side] for part in text.split("\t")], data.tokenizer, size)
        encoder = TextPairEncoder(one) if form == "labelled" else one
        tokens = np.full((len(sample), 2), form == "labelled", np.int64)
        tokens[:, side] = [len(ids) for ids in encoder.encode(sides[side])]
        return tokens, (one.vocab_size, one.vocab_size)
    if data.separate_vocabularies:
        source, target = (Tokenizer.train(texts, data.tokenizer, size) for texts in sides)
    else:
        source = target = Tokenizer.train(sides[0] + sides[1], data.tokenizer, size)
    lengths = [[len(ids) for ids in one.encode(texts)] for one, texts in zip((source, target), sides, strict=True)]
    return np.array(lengths).T, (source.vocab_size, target.vocab_size)
