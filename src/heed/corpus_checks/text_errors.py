"""Error types of training data, the report of the corpus checks, and the writing of cleaned data.

    unreadable              a row that is not valid text, or not a pair: training stops at it
    empty, copied           a side is empty; both sides are identical
    swapped                 each side is in the other side's language
    source_foreign          the source is in the target's language, like the target
    target_foreign          the target is in the source's language, like the source
    unlike                  a side is an outlier on its side: a third language, or noise
    unequal, too_long       one side is far longer than the other; a side has an estimated more than max_tokens tokens
    cut_off                 the target has an estimated more tokens than the maximum length of a translation
    repeated, ambiguous     a duplicate of an earlier pair; a source with several targets
    leaked                  a validation pair is in the training data; leaked_source, leaked_target: one side of it is
    unknown_label           a validation pair has a label that is not in the training data
    replacement, control, spaces, mojibake, markup, decomposed      suspicious characters

Monolingual texts can be empty, too long, repeated or leaked, and have suspicious characters. A labelled text can also
be ambiguous (several labels), leaked with another label (leaked_source), or have an unknown label; if nearly all labels
differ, the label and text columns are swapped. Knows nothing of terminals.
"""

import json
import os
import re
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from heed.errors import DataError
from heed.text.corpus import Corpus, Pair, read_pairs
from heed.text.text_statistics import TextStatistics

TextErrorType = Literal[
    "unreadable", "leaked", "leaked_source", "leaked_target", "swapped", "source_foreign", "target_foreign", "copied",
    "unlike", "empty", "too_long", "cut_off", "unequal", "repeated", "ambiguous", "unknown_label", "replacement",
    "mojibake", "control", "spaces", "markup", "decomposed",
]  # fmt: skip
CorpusForm = Literal["pairs", "texts", "labelled"]  # parallel, monolingual or labelled text
Integers = NDArray[np.int64]

# For each form of corpus: the sides that are text, the possible leaks, and the separator of texts within one side.
TEXTS: dict[CorpusForm, tuple[int, ...]] = {"pairs": (0, 1), "texts": (1,), "labelled": (0,)}  # 0: source, 1: target
LEAKS: dict[CorpusForm, tuple[TextErrorType, ...]] = {
    "pairs": ("leaked", "leaked_source", "leaked_target"),
    "texts": ("leaked",),
    "labelled": ("leaked", "leaked_source"),
}
TEXT_SEPARATOR: dict[CorpusForm, str] = {"texts": "\n", "labelled": "\t"}  # between lines; between texts of one label

# The errors that are left out of cleaned data. A pair with several errors counts as the first of them.
DROPPED_ERRORS: tuple[TextErrorType, ...] = (
    "unreadable", "empty", "too_long", "leaked", "repeated", "copied", "swapped", "source_foreign", "target_foreign",
    "unequal", "replacement", "mojibake",
)  # fmt: skip

MAX_SHOWN = 200  # characters of a text in an example
_CHARACTER_PATTERNS: dict[TextErrorType, re.Pattern[str]] = {
    "replacement": re.compile("\ufffd"),
    "mojibake": re.compile("[ÃÂ][\x80-\xbf]|â€."),  # UTF-8 taken for Latin-1 and encoded again
    "control": re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200b\u2028\u2029\u2060\ufeff]"),
    # Thin (U+202F) and ideographic (U+3000) spaces are intentional.
    "spaces": re.compile(r"[^\S \x0a-\x1f\x85\u2028\u2029\u202f\u3000]|  |^ | $"),
    "markup": re.compile(r"&(?:[a-z]{2,6}|#\d+|#x[0-9a-f]+);|</?[a-z][^<>]*>", re.IGNORECASE),
}
_SUSPICIOUS = re.compile("[\ufffd&<ÃÂâ]|  |^ | $")  # printable text without this has none of the above


@dataclass(frozen=True)
class TextErrorExample:
    """The location of an error, and the texts of the pair or the excerpt that has the error."""

    file: str
    line: int
    texts: tuple[str, ...]
    also: str = ""  # file:line of the other pair, for errors between two pairs


@dataclass
class TextErrorSummary:
    """The count of one error type, and the first examples."""

    kind: TextErrorType
    count: int = 0
    examples: list[TextErrorExample] = field(default_factory=list)
    advice: str = ""  # specific advice, in addition to the general remedy


class DropMarks:
    """The error for which each pair is left out of cleaned data, if any."""

    def __init__(self) -> None:
        self.codes = bytearray()  # per pair: 0, or the 1-based index of the error in DROPPED_ERRORS

    def add_pair(self) -> None:
        """Add a pair without an error."""
        self.codes.append(0)

    def mark(self, kind: TextErrorType, indices: Iterable[int]) -> None:
        """Record an error of these pairs; of several errors the first in DROPPED_ERRORS counts."""
        if kind in DROPPED_ERRORS:
            code = DROPPED_ERRORS.index(kind) + 1
            for index in indices:
                self.codes[index] = min(code, self.codes[index] or code)


@dataclass(frozen=True)
class CorpusReport:
    """The result of the corpus checks: sizes, lengths and errors of the training and validation data."""

    form: CorpusForm
    training: tuple[tuple[str, int], ...]  # name and pairs of each corpus
    validation: tuple[tuple[str, int], ...]
    lengths: dict[tuple[str, str], Counter[int]]  # ("source", "words"): the number of texts of each length
    tokens: Integers  # (pairs of a sample, 2): tokens per side, without special tokens
    vocab_sizes: tuple[int, int]
    labels: dict[str, tuple[int, int]]  # counts in training and validation, most frequent first
    findings: tuple[TextErrorSummary, ...]
    notes: tuple[str, ...]  # checks that could not be made, and why
    sides: tuple[TextStatistics, ...]  # source and target
    dropped: NDArray[np.uint8]  # the code of each training pair, as in `DropMarks`

    @property
    def pairs(self) -> int:
        """The number of training pairs."""
        return sum(pairs for _, pairs in self.training)


def bad_characters(text: str) -> Iterator[tuple[TextErrorType, str]]:
    """Each type of suspicious character in a text, with an excerpt around it."""
    if not text.isprintable() or _SUSPICIOUS.search(text):
        for kind, pattern in _CHARACTER_PATTERNS.items():
            if match := pattern.search(text):
                yield kind, _excerpt(text, *match.span())
    if not text.isascii() and not unicodedata.is_normalized("NFC", text):
        yield "decomposed", text[:MAX_SHOWN]


def _excerpt(text: str, start: int, end: int) -> str:
    before, after = max(0, start - 20), end + 40
    return "…" * (before > 0) + text[before:after] + "…" * (after < len(text))


@dataclass(frozen=True)
class CleaningResult:
    """The result of writing cleaned data."""

    file: str
    kept: int
    dropped: dict[str, int]  # by error type
    respaced: int  # pairs in which tabs or line ends became spaces


def check_writable(path: Path, corpora: Sequence[Corpus], form: CorpusForm) -> None:
    """Raise a DataError if cleaned data cannot be written to this path."""
    if form != "texts" and path.suffix.lower() not in (".tsv", ".jsonl"):
        raise DataError(f"--write {path}: expected a name ending in .tsv or .jsonl")
    for corpus in corpora:
        for file in filter(None, (corpus.source, corpus.target, corpus.pairs, corpus.text)):
            if path.exists() and os.path.exists(file) and path.samefile(file):
                raise DataError(f"--write {path}: this is the input file; expected another name")


def write_clean(path: Path, corpora: Sequence[Corpus], report: CorpusReport) -> CleaningResult:
    """Write the training pairs without errors atomically."""
    kept = respaced = 0
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8", newline="\n") as file:
            try:
                for pair in _clean_pairs(corpora, report):
                    line, changed = _line(pair, report.form, corpora, jsonl=path.suffix.lower() == ".jsonl")
                    file.write(line)
                    kept, respaced = kept + 1, respaced + changed
                file.close()
                Path(file.name).chmod(0o644)
                Path(file.name).replace(path)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(file.name)
    except OSError as error:
        raise DataError(f"--write {path}: cannot be written: {error.strerror}") from None
    counts = {kind: int((report.dropped == code).sum()) for code, kind in enumerate(DROPPED_ERRORS, 1)}
    counts["unreadable"] = sum(finding.count for finding in report.findings if finding.kind == "unreadable")
    return CleaningResult(str(path), kept, {kind: count for kind, count in counts.items() if count}, respaced)


def _clean_pairs(corpora: Sequence[Corpus], report: CorpusReport) -> Iterator[Pair]:
    pairs = (pair for corpus in corpora for pair in read_pairs(corpus, lambda _: None))
    return (pair for pair, code in zip(pairs, report.dropped, strict=True) if not code)


def _line(pair: Pair, form: CorpusForm, corpora: Sequence[Corpus], *, jsonl: bool) -> tuple[str, bool]:
    """A pair as a line of output, and whether tabs or line ends in it were replaced."""
    if form == "texts":
        return f"{pair.target}\n" + "\n" * corpora[0].documents, False
    texts = [pair.target, *pair.source.split("\t")] if form == "labelled" else [pair.source, pair.target]
    if jsonl:
        names = ("label", "text", "text2") if form == "labelled" else ("source", "target")
        return json.dumps(dict(zip(names, texts, strict=False)), ensure_ascii=False) + "\n", False
    cells = [re.sub(r"[\t\r\n]+", " ", text) for text in texts]
    return "\t".join(cells) + "\n", cells != texts
