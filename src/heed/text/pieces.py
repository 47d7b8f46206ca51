"""A corpus as lists of so many pairs, for what is done to many pairs at once."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from heed.text.corpus import Corpus, Pair, Skip, read_pairs


@dataclass(frozen=True)
class Piece:
    """Pairs that are looked at together, and the number of the first."""

    corpus: Corpus
    pairs: list[Pair]
    start: int


def pieces(corpus: Corpus, size: int, skip: Skip, start: int) -> Iterator[Piece]:
    """All pairs of a corpus, numbered from `start` on. skip: as `read_pairs` has it."""
    pairs = read_pairs(corpus, skip)
    while piece := list(islice(pairs, size)):
        yield Piece(corpus, piece, start)
        start += len(piece)
