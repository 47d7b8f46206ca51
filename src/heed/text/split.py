"""A text too long to be translated at once to pieces that are not.

A text is cut at line ends always, then where sentences end, and only where that is not enough at clauses, between
words, or anywhere. Nothing is dropped: what stands before, in and after the pieces, joined, is the text. Knows nothing
of tokens: how long a piece is, it is told.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

Count = Callable[[Sequence[str]], Sequence[int]]  # the length of each piece

_CLOSING = "\"'”’»)]}"
_SENTENCE, _CLAUSE = ".!?…:", ",;–—"  # end something where white space follows
_SENTENCE_ANYWHERE, _CLAUSE_ANYWHERE = "。！？", "、，；："  # end something wherever they stand


@dataclass(frozen=True)
class Piece:
    """What is to be translated, and the white space around it, which stays as it is."""

    before: str
    text: str
    after: str

    @classmethod
    def of(cls, part: str) -> "Piece":
        """White space is what `str.strip` takes away."""
        text = part.strip()
        before = part[: len(part) - len(part.lstrip())] if text else part
        return cls(before, text, part[len(before) + len(text) :])


def split(text: str, longest: int, count: Count) -> list[Piece]:
    """The pieces of a text, none longer than `longest`. A short line is one piece, white space and all."""
    pieces = []
    for line in text.splitlines(keepends=True):
        body = line.rstrip("\r\n\v\f\x1c\x1d\x1e\x85\u2028\u2029")
        end = line[len(body) :]
        if not body.strip():
            pieces.append(Piece(line, "", ""))
        elif count([body])[0] <= longest:
            pieces.append(Piece("", body, end))
        else:
            parts = _fitting(body, longest, count)
            parts[-1] += end
            pieces += [Piece.of(part) for part in parts]
    return pieces


def _fitting(text: str, longest: int, count: Count, level: int = 0) -> list[str]:
    """Parts that fit, as few as possible, cut at the weakest point that serves."""
    cuts = _LEVELS[level](text)
    parts = [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]
    lengths = count(parts)
    packed: list[str] = []
    room = 0
    for part, length in zip(parts, lengths, strict=True):
        if length > longest and len(part) > 1:
            packed += _fitting(part, longest, count, min(level + 1, len(_LEVELS) - 1))
            room = 0
        elif packed and length <= room:
            packed[-1] += part
            room -= length
        else:
            packed.append(part)
            room = longest - length
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
    lambda text: _after(text, _SENTENCE, _SENTENCE_ANYWHERE),
    lambda text: _after(text, _CLAUSE, _CLAUSE_ANYWHERE),
    _between_words,
    _middle,
)
