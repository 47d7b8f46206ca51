"""How long the sources of a training text are: what a model has learnt to translate at once.

Enters: sources, as text and as token counts. Leaves: a few numbers, kept in the model folder's `config.json` under
`trained.lengths`, by which longer texts are split when they are translated (`split.py`).
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.text.sentences import sentence_starts

_SAMPLE = 20_000  # lines whose sentences are counted, at most twice as many


@dataclass(frozen=True)
class SourceLengths:
    """Of the sources that a model was trained on."""

    sentences: int  # that 95 of 100 lines have at most
    common: int  # tokens that 99 of 100 lines have at most
    longest: int  # tokens of the longest line

    def to_json(self) -> dict[str, int]:
        """As it is kept in a model folder."""
        return asdict(self)

    @classmethod
    def from_json(cls, kept: Any) -> "SourceLengths | None":
        """What `to_json` wrote; none for a folder of an earlier heed, or an imported model."""
        match kept:
            case {"sentences": int(sentences), "common": int(common), "longest": int(longest)}:
                return cls(max(sentences, 1), max(common, 1), max(longest, 1))
            case _:
                return None


class SentenceCounter:
    """Counts the sentences of a bounded sample of lines, evenly spread over a text of unknown size."""

    def __init__(self, language: str = "") -> None:
        self._language, self._counts, self._seen, self._stride = language, list[int](), 0, 1

    def add(self, line: str) -> None:
        """The next line of the text."""
        if self._seen % self._stride == 0:
            self._counts.append(1 + len(sentence_starts(line, self._language)))
            if len(self._counts) == 2 * _SAMPLE:
                self._counts, self._stride = self._counts[::2], 2 * self._stride
        self._seen += 1

    def usual(self) -> int:
        """What 95 of 100 lines have at most."""
        return _at_most(np.array(self._counts or [1]), 95)


def source_lengths(tokens: NDArray[np.int64], sentences: int) -> SourceLengths:
    """From the token count of each source, and the usual number of sentences."""
    return SourceLengths(sentences, _at_most(tokens, 99), int(tokens.max()))


def _at_most(numbers: NDArray[np.int64], percent: int) -> int:
    """The least number that so many of a hundred do not exceed."""
    return int(np.percentile(numbers, percent, method="higher"))
