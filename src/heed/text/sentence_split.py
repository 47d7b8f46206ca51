"""A text to the pieces that a model translates at once, by how long the sources it was trained on were.

A model that was trained on single sentences translates the first of two and forgets the second. So a line that holds
more than training lines did is split where sentences end, a sentence longer than any of training also at clauses, and
only where that is not enough between words, or anywhere. Nothing is dropped: what stands before, in and after the
pieces, joined, is the text.

Enters: texts, and a function that counts tokens. Leaves: pieces. The lengths of a training text (`SourceLengths`) are
counted while it is read, and kept in the model folder. Knows nothing of tokenizers or models.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.config import DataConfig, SplitMode
from heed.errors import InputError
from heed.text.sentences import sentence_starts

TokenCounter = Callable[[Sequence[str]], Sequence[int]]  # the length of each piece

_CLOSING = "\"'”’»)]}"
_CLAUSE = ".!?…:,;–—"  # end a clause where white space follows
_CLAUSE_ANYWHERE = "。！？、，；："  # end one wherever they stand
_LINE_ENDS = "\r\n\v\f\x1c\x1d\x1e\x85\u2028\u2029"


_SAMPLE = 20_000  # lines whose sentences are counted, at most twice as many


@dataclass(frozen=True)
class SourceLengths:
    """How long the sources were that a model was trained on."""

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
        """Count the sentences of the next line, if it is in the sample."""
        if self._seen % self._stride == 0:
            self._counts.append(1 + len(sentence_starts(line, self._language)))
            if len(self._counts) == 2 * _SAMPLE:
                self._counts, self._stride = self._counts[::2], 2 * self._stride
        self._seen += 1

    def usual(self) -> int:
        """The number of sentences that 95 of 100 lines do not exceed."""
        return _at_most(np.array(self._counts or [1]), 95)


def source_lengths(tokens: NDArray[np.int64], sentences: int) -> SourceLengths:
    """From the token count of each source, and the usual number of sentences."""
    return SourceLengths(sentences, _at_most(tokens, 99), int(tokens.max()))


def _at_most(numbers: NDArray[np.int64], percent: int) -> int:
    """The least number that so many of a hundred do not exceed."""
    return int(np.percentile(numbers, percent, method="higher"))


@dataclass(frozen=True)
class TextSegment:
    """What is to be translated, and the white space around it, which stays as it is."""

    before: str
    text: str
    after: str
    no_space_before: bool = (
        False  # it follows the mark that ends the piece before it without white space, as in Chinese
    )

    @classmethod
    def of(cls, part: str) -> "TextSegment":
        """White space is what `str.strip` takes away."""
        text = part.strip()
        before = part[: len(part) - len(part.lstrip())] if text else part
        return cls(before, text, part[len(before) + len(text) :])


@dataclass(frozen=True)
class Splitter:
    """Splits texts for one model.

    max_tokens: no piece is longer. trained: how long its training sources were; none: unknown, then every sentence is
    a piece, since most models were trained on single sentences. language: of the texts, if known.
    """

    max_tokens: int
    trained: SourceLengths | None = None
    language: str = ""

    @classmethod
    def of(cls, data: DataConfig, trained: Mapping[str, Any]) -> "Splitter":
        """For a model, by the settings and the record of its training that its folder holds."""
        return cls(data.max_tokens, SourceLengths.from_json(trained.get("lengths")), data.source_language)

    def split(self, text: str, mode: SplitMode, count: TokenCounter) -> list[TextSegment]:
        """The pieces of a text. What need not be split is one piece, white space and all.

        mode: "sentences" cuts lines that hold more than training lines did, "line" only those of more than
        `max_tokens`, and "none" nothing at all: a text of several lines is one piece, and one that is too long raises.
        """
        if mode == "none":
            return self._whole(text, count)
        limits = self._limits(mode)
        pieces = []
        for line in text.splitlines(keepends=True):
            body = line.rstrip(_LINE_ENDS)
            if body.strip():
                pieces += _pieces_of_line(body, line[len(body) :], limits, count)
            else:
                pieces.append(TextSegment(line, "", ""))
        return pieces

    def _whole(self, text: str, count: TokenCounter) -> list[TextSegment]:
        if not text.strip():
            return [TextSegment(text, "", "")]
        if (tokens := count([text])[0]) > self.max_tokens:
            raise InputError(
                f"a text of {tokens:,} tokens is more than the {self.max_tokens:,} that this model takes at once: "
                f"split it into sentences, or give less; it begins {text[:50]!r}"
            )
        return [TextSegment("", text, "")]

    def _limits(self, mode: SplitMode) -> "_Limits":
        longest = self.max_tokens
        if mode == "line":
            return _Limits(None, longest, longest, longest, self.language)
        if self.trained is None:
            return _Limits(1, longest, longest, longest, self.language)
        sentence = min(self.trained.longest, longest)
        twice = min(2 * sentence, longest)
        return _Limits(self.trained.sentences, min(self.trained.common, longest), sentence, twice, self.language)


@dataclass(frozen=True)
class _Limits:
    """How much of a line is translated at once."""

    sentences: int | None  # in a piece; none: any number
    tokens: int  # of a piece of several sentences
    sentence: int  # tokens of a sentence; a longer one is cut at clauses
    clause: int  # tokens of a clause; a longer one is cut between words, and a longer word anywhere
    language: str


def _pieces_of_line(body: str, end: str, limits: _Limits, count: TokenCounter) -> list[TextSegment]:
    length = count([body])[0]
    if limits.sentences is None and length <= limits.tokens:
        return [TextSegment("", body, end)]
    parts = [body[start:stop] for start, stop in pairwise([0, *sentence_starts(body, limits.language), len(body)])]
    if len(parts) == 1 and length <= limits.sentence:
        return [TextSegment("", body, end)]
    parts = _packed(parts, limits, count)
    if len(parts) == 1:
        return [TextSegment("", body, end)]
    parts[-1] += end
    pieces = [TextSegment.of(part) for part in parts]
    return [pieces[0]] + [
        replace(piece, no_space_before=not before[-1].isspace() and not before[-1].isalnum())
        for before, piece in zip(parts, pieces[1:], strict=False)
    ]


def _packed(parts: Sequence[str], limits: _Limits, count: TokenCounter) -> list[str]:
    """Sentences to pieces that fit, as few as possible; a sentence that is too long is cut."""
    packed: list[str] = []
    room = held = 0
    for part, length in zip(parts, count(parts), strict=True):
        if length > limits.sentence and len(part) > 1:
            packed += _fitting(part, limits, count)
            room = 0
        elif packed and length <= room and (limits.sentences is None or held < limits.sentences):
            packed[-1] += part
            room, held = room - length, held + 1
        else:
            packed.append(part)
            room, held = limits.tokens - length, 1
    return packed


def _fitting(text: str, limits: _Limits, count: TokenCounter, level: int = 0) -> list[str]:
    """Parts of a sentence that fit, as few as possible, cut at the weakest point that serves."""
    parts = [text[start:end] for start, end in pairwise([0, *_LEVELS[level](text), len(text)])]
    packed: list[str] = []
    room = 0
    for part, length in zip(parts, count(parts), strict=True):
        if length > limits.clause and len(part) > 1:
            packed += _fitting(part, limits, count, min(level + 1, len(_LEVELS) - 1))
            room = 0
        elif packed and length <= room:
            packed[-1] += part
            room -= length
        else:
            packed.append(part)
            room = limits.sentence - length
    return packed


def _after(text: str, marks: str, anywhere: str) -> Iterable[int]:
    """Where a part begins: after a mark, closing quotes and white space; `anywhere` needs no white space after it."""
    marked = spaced = False
    for place, character in enumerate(text):
        if character.isspace():
            spaced = marked
        else:
            if spaced:
                yield place
            marked = character in marks or (marked and not spaced and character in _CLOSING)
            spaced = character in anywhere
            marked = marked or spaced


def _between_words(text: str) -> Iterable[int]:
    return (place for place in range(1, len(text)) if text[place - 1].isspace() and not text[place].isspace())


def _middle(text: str) -> Iterable[int]:
    return [len(text) // 2]


_LEVELS: tuple[Callable[[str], Iterable[int]], ...] = (
    lambda text: _after(text, _CLAUSE, _CLAUSE_ANYWHERE),
    _between_words,
    _middle,
)
