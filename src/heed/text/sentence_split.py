"""Splits input text into segments no longer than the model's training sources.

A model trained on single sentences often drops the second of two. So a line longer than the training lines is split at
sentence boundaries, a sentence longer than any training line also at clauses, and if that is not enough between words,
or anywhere. Nothing is lost: the white space and text of all segments, concatenated, is the input.

Enters: texts, and a function that counts tokens. Leaves: segments. The statistics of the training sources
(`SourceLengths`) are stored in the model folder. Knows nothing of tokenizers or models.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.config import DataConfig
from heed.errors import InputError
from heed.search_config import SplitMode
from heed.text.sentences import sentence_starts

TokenCounter = Callable[[Sequence[str]], Sequence[int]]  # the number of tokens of each text

_CLOSING = "\"'”’»)]}"
_CLAUSE_END = ".!?…:,;–—"  # end a clause if white space follows
_CLAUSE_END_ALWAYS = "。！？、，；："  # end a clause, white space or not
_LINE_ENDS = "\r\n\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_SAMPLE = 20_000  # lines whose sentences are counted; at most twice as many are held


@dataclass(frozen=True)
class SourceLengths:
    """Length statistics of the source lines a model was trained on."""

    sentences: int  # 95th percentile of the sentences per line
    common: int  # 99th percentile of the tokens per line
    longest: int  # tokens of the longest line

    def to_json(self) -> dict[str, int]:
        """The JSON object stored in a model folder."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> "SourceLengths | None":
        """Parse what `to_json` wrote; None for model folders without it (older or imported)."""
        match value:
            case {"sentences": int(sentences), "common": int(common), "longest": int(longest)}:
                return cls(max(sentences, 1), max(common, 1), max(longest, 1))
            case _:
                return None


class SentenceCounter:
    """Counts sentences per line in a bounded sample, evenly spread over a stream of unknown length."""

    def __init__(self) -> None:
        self._counts, self._seen, self._stride = list[int](), 0, 1

    def add(self, line: str) -> None:
        """Count the sentences of the next line, if it is in the sample."""
        if self._seen % self._stride == 0:
            self._counts.append(1 + len(sentence_starts(line)))
            if len(self._counts) == 2 * _SAMPLE:
                self._counts, self._stride = self._counts[::2], 2 * self._stride
        self._seen += 1

    def percentile_95(self) -> int:
        """The 95th percentile of the sentences per line."""
        return _percentile(np.array(self._counts or [1]), 95)


def source_lengths(tokens: NDArray[np.int64], sentences: int) -> SourceLengths:
    """Statistics from the token count of each source, and the 95th percentile of sentences per line."""
    return SourceLengths(sentences, _percentile(tokens, 99), int(tokens.max()))


def _percentile(numbers: NDArray[np.int64], percent: int) -> int:
    """The percentile, rounded up to one of the numbers."""
    return int(np.percentile(numbers, percent, method="higher"))


@dataclass(frozen=True)
class TextSegment:
    """A text to translate and the white space around it, which is copied to the output."""

    before: str
    text: str
    after: str
    no_space_before: bool = False  # directly follows the punctuation of the previous segment, as in Chinese

    @classmethod
    def from_text(cls, part: str) -> "TextSegment":
        text = part.strip()
        before = part[: len(part) - len(part.lstrip())] if text else part
        return cls(before, text, part[len(before) + len(text) :])


@dataclass(frozen=True)
class Splitter:
    """Splits texts for one model.

    max_tokens: the maximum length of a segment. trained: statistics of the model's training sources; None: unknown, and
    every sentence is a segment, since most models are trained on single sentences. language: of the texts, if known.
    """

    max_tokens: int
    trained: SourceLengths | None = None
    language: str = ""

    @classmethod
    def from_config(cls, data: DataConfig, trained: Mapping[str, Any]) -> "Splitter":
        """The splitter of a model. trained: the training record of its model folder."""
        return cls(data.max_tokens, SourceLengths.from_json(trained.get("lengths")), data.source_language)

    def split(self, text: str, mode: SplitMode, count: TokenCounter) -> list[TextSegment]:
        """Split a text into segments; a line that need not be split is one segment, white space included.

        mode: "sentences" splits lines longer than the training lines, "line" only lines of more than `max_tokens`
        tokens, "none" never: a text of several lines is one segment, and a text that is too long raises.
        """
        if mode == "none":
            return self._unsplit(text, count)
        limits = self._limits(mode)
        segments = []
        for line in text.splitlines(keepends=True):
            body = line.rstrip(_LINE_ENDS)
            if body.strip():
                segments += _split_line(body, line[len(body) :], limits, count)
            else:
                segments.append(TextSegment(line, "", ""))
        return segments

    def _unsplit(self, text: str, count: TokenCounter) -> list[TextSegment]:
        if not text.strip():
            return [TextSegment(text, "", "")]
        if (tokens := count([text])[0]) > self.max_tokens:
            raise InputError(
                f"a text of {tokens:,} tokens is longer than this model's limit of {self.max_tokens:,}: split it into "
                f"sentences or shorten it; it begins {text[:50]!r}"
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
    """The maximum sizes of a segment."""

    sentences: int | None  # per segment; None: any number
    tokens: int  # of a segment of several sentences
    sentence: int  # tokens of a sentence; a longer one is split at clauses
    clause: int  # tokens of a clause; a longer one is split between words, and a longer word anywhere
    language: str


def _split_line(body: str, end: str, limits: _Limits, count: TokenCounter) -> list[TextSegment]:
    length = count([body])[0]
    if limits.sentences is None and length <= limits.tokens:
        return [TextSegment("", body, end)]
    parts = [body[start:stop] for start, stop in pairwise([0, *sentence_starts(body, limits.language), len(body)])]
    if len(parts) == 1 and length <= limits.sentence:
        return [TextSegment("", body, end)]
    parts = _pack_sentences(parts, limits, count)
    if len(parts) == 1:
        return [TextSegment("", body, end)]
    parts[-1] += end
    segments = [TextSegment.from_text(part) for part in parts]
    return [segments[0]] + [
        replace(segment, no_space_before=not previous[-1].isspace() and not previous[-1].isalnum())
        for previous, segment in zip(parts, segments[1:], strict=False)
    ]


def _pack_sentences(parts: Sequence[str], limits: _Limits, count: TokenCounter) -> list[str]:
    """Join consecutive sentences into as few segments as fit; split sentences that are too long."""
    packed: list[str] = []
    tokens_left = sentences = 0
    for part, length in zip(parts, count(parts), strict=True):
        if length > limits.sentence and len(part) > 1:
            packed += _split_sentence(part, limits, count)
            tokens_left = 0
        elif packed and length <= tokens_left and (limits.sentences is None or sentences < limits.sentences):
            packed[-1] += part
            tokens_left, sentences = tokens_left - length, sentences + 1
        else:
            packed.append(part)
            tokens_left, sentences = limits.tokens - length, 1
    return packed


def _split_sentence(text: str, limits: _Limits, count: TokenCounter, level: int = 0) -> list[str]:
    """Split a sentence into as few parts as fit: at clauses, else (level 1) between words, else (2) anywhere."""
    parts = [text[start:end] for start, end in pairwise([0, *_LEVELS[level](text), len(text)])]
    packed: list[str] = []
    tokens_left = 0
    for part, length in zip(parts, count(parts), strict=True):
        if length > limits.clause and len(part) > 1:
            packed += _split_sentence(part, limits, count, min(level + 1, len(_LEVELS) - 1))
            tokens_left = 0
        elif packed and length <= tokens_left:
            packed[-1] += part
            tokens_left -= length
        else:
            packed.append(part)
            tokens_left = limits.sentence - length
    return packed


def _clause_starts(text: str) -> Iterable[int]:
    """Offsets after clause punctuation, closing quotes and white space; some punctuation needs no white space."""
    after_mark = at_boundary = False
    for offset, character in enumerate(text):
        if character.isspace():
            at_boundary = after_mark
        else:
            if at_boundary:
                yield offset
            after_mark = character in _CLAUSE_END or (after_mark and not at_boundary and character in _CLOSING)
            at_boundary = character in _CLAUSE_END_ALWAYS
            after_mark = after_mark or at_boundary


def _word_starts(text: str) -> Iterable[int]:
    return (offset for offset in range(1, len(text)) if text[offset - 1].isspace() and not text[offset].isspace())


def _middle(text: str) -> Iterable[int]:
    return [len(text) // 2]


_LEVELS: tuple[Callable[[str], Iterable[int]], ...] = (_clause_starts, _word_starts, _middle)
