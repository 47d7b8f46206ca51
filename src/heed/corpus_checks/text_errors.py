"""The kinds of fault that a training text can have, the values that report them, and texts cleaned of them.

    unreadable              a row that is not text, or not a pair: training stops at it
    empty, copied           a side has nothing in it; both sides are the same
    swapped                 each side reads like the other side's language
    source_foreign          the source reads like the target's language, as the target does
    target_foreign          the target reads like the source's language, as the source does
    unlike                  a side is unlike all others of its side: a third language, or noise
    unequal, too_long       one side is far longer than the other; a side has, it seems, more than max_tokens tokens
    cut_off                 the target has, it seems, more tokens than a translation may have
    repeated, ambiguous     a pair was there before; a source has several targets
    leaked                  a validation pair is in training; leaked_source, leaked_target: one side of it is
    unknown_label           a validation pair has a label that training has not
    replacement, control, spaces, mojibake, markup, decomposed      characters that should not be there

Single texts have no sides: they can be empty, too long, repeated, leaked, and have characters that should not be there.
A labelled text can also be ambiguous (it has several labels), leaked with another label (leaked_source), or have an
unknown one; where nearly all labels differ, label and text are swapped. Knows nothing of files or terminals.
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

TextErrorType = Literal[
    "unreadable", "leaked", "leaked_source", "leaked_target", "swapped", "source_foreign", "target_foreign", "copied",
    "unlike", "empty", "too_long", "cut_off", "unequal", "repeated", "ambiguous", "unknown_label", "replacement",
    "mojibake", "control", "spaces", "markup", "decomposed",
]  # fmt: skip
CorpusForm = Literal["pairs", "texts", "labelled"]  # what a text comes as: with its translation, alone, or with a label
Integers = NDArray[np.int64]

# What each form comes to: the sides that are text, the leaks there can be, and what parts the texts of one side.
TEXTS: dict[CorpusForm, tuple[int, ...]] = {"pairs": (0, 1), "texts": (1,), "labelled": (0,)}  # the sides that are text
LEAKS: dict[CorpusForm, tuple[TextErrorType, ...]] = {
    "pairs": ("leaked", "leaked_source", "leaked_target"),
    "texts": ("leaked",),
    "labelled": ("leaked", "leaked_source"),
}
PARTED_BY: dict[CorpusForm, str] = {
    "texts": "\n",
    "labelled": "\t",
}  # lines of a document; two texts that share a label

# What a cleaned text is without. A pair with several faults counts as the first of them.
DROPPED_ERRORS: tuple[TextErrorType, ...] = (
    "unreadable", "empty", "too_long", "leaked", "repeated", "copied", "swapped", "source_foreign", "target_foreign",
    "unequal", "replacement", "mojibake",
)  # fmt: skip

SHOWN = 200  # characters of a text
_CHARACTERS: dict[TextErrorType, re.Pattern[str]] = {
    "replacement": re.compile("\ufffd"),
    "mojibake": re.compile("[ÃÂ][\x80-\xbf]|â€."),  # UTF-8 taken for Latin-1 and encoded again
    "control": re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200b\u2028\u2029\u2060\ufeff]"),
    "spaces": re.compile(r"[^\S \x0a-\x1f\x85\u2028\u2029\u202f\u3000]|  |^ | $"),  # thin and wide ones are meant
    "markup": re.compile(r"&(?:[a-z]{2,6}|#\d+|#x[0-9a-f]+);|</?[a-z][^<>]*>", re.IGNORECASE),
}
_SUSPICIOUS = re.compile("[\ufffd&<ÃÂâ]|  |^ | $")  # or not printable: else none of these can be there


@dataclass(frozen=True)
class TextErrorExample:
    """Where a fault is and what it looks like: the texts of a pair that are there, or the part of one where it is."""

    file: str
    line: int
    texts: tuple[str, ...]
    also: str = ""  # file:line of the other pair, where two have something in common


@dataclass
class TextErrorSummary:
    """One kind of fault: how often it was found, and the first examples."""

    kind: TextErrorType
    count: int = 0
    examples: list[TextErrorExample] = field(default_factory=list)
    advice: str = ""  # what to do in this very case, besides what is always said


class DropMarks:
    """What is wrong with each pair, of that which a cleaned text is without."""

    def __init__(self) -> None:
        self.faults = bytearray()  # of each pair: 0, or the place in DROPPED, from 1 on

    def add_pair(self) -> None:
        """One more pair, so far without a fault."""
        self.faults.append(0)

    def mark(self, kind: TextErrorType, numbers: Iterable[int]) -> None:
        """These pairs have this fault; whichever fault comes first in DROPPED is the one that counts."""
        if kind in DROPPED_ERRORS:
            place = DROPPED_ERRORS.index(kind) + 1
            for number in numbers:
                self.faults[number] = min(place, self.faults[number] or place)


@dataclass(frozen=True)
class CorpusReport:
    """The result of the corpus checks: sizes, lengths and findings of the text of a run."""

    form: CorpusForm
    training: tuple[tuple[str, int], ...]  # name and pairs of each corpus
    validation: tuple[tuple[str, int], ...]
    lengths: dict[tuple[str, str], Counter[int]]  # ("source", "words"): how many texts there are of each length
    tokens: Integers  # (pairs of a sample, 2): the tokens on each side, without special ones
    vocab_sizes: tuple[int, int]
    labels: dict[str, tuple[int, int]]  # how often each is in training and in validation; the most frequent first
    findings: tuple[TextErrorSummary, ...]
    notes: tuple[str, ...]  # what could not be looked at, and why
    dropped: NDArray[np.uint8]  # of each training pair: 0, or the place in DROPPED, from 1 on, of what is wrong with it

    @property
    def pairs(self) -> int:
        """How many pairs there are to train on."""
        return sum(pairs for _, pairs in self.training)


def bad_characters(text: str) -> Iterator[tuple[TextErrorType, str]]:
    """Each kind of character that should not be there, with the part of the text where it is."""
    if not text.isprintable() or _SUSPICIOUS.search(text):
        for kind, pattern in _CHARACTERS.items():
            if found := pattern.search(text):
                yield kind, _around(text, *found.span())
    if not text.isascii() and not unicodedata.is_normalized("NFC", text):
        yield "decomposed", text[:SHOWN]


def _around(text: str, start: int, end: int) -> str:
    """A part of a text and what is beside it."""
    before, after = max(0, start - 20), end + 40
    return "…" * (before > 0) + text[before:after] + "…" * (after < len(text))


@dataclass(frozen=True)
class CleaningResult:
    """What was written, and what was not."""

    file: str
    kept: int
    dropped: dict[str, int]  # by kind of fault
    respaced: int  # pairs in which tabs or line ends became spaces


def check_writable(path: Path, corpora: Sequence[Corpus], form: CorpusForm) -> None:
    """Whether a cleaned text can go there."""
    if form != "texts" and path.suffix.lower() not in (".tsv", ".jsonl"):
        raise DataError(f"--write {path}: expected a name ending in .tsv or .jsonl")
    for corpus in corpora:
        for file in filter(None, (corpus.source, corpus.target, corpus.pairs, corpus.text)):
            if path.exists() and os.path.exists(file) and path.samefile(file):
                raise DataError(f"--write {path}: this is the text itself; expected another name")


def write_clean(path: Path, corpora: Sequence[Corpus], report: CorpusReport) -> CleaningResult:
    """Write what is left of the training corpora; the file is whole or not there."""
    kept = respaced = 0
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8", newline="\n") as file:
            try:
                for pair in _left(corpora, report):
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
    counts = {kind: int((report.dropped == place).sum()) for place, kind in enumerate(DROPPED_ERRORS, 1)}
    counts["unreadable"] = sum(one.count for one in report.findings if one.kind == "unreadable")
    return CleaningResult(str(path), kept, {kind: count for kind, count in counts.items() if count}, respaced)


def _left(corpora: Sequence[Corpus], report: CorpusReport) -> Iterator[Pair]:
    pairs = (pair for corpus in corpora for pair in read_pairs(corpus, lambda _: None))
    return (pair for pair, fault in zip(pairs, report.dropped, strict=True) if not fault)


def _line(pair: Pair, form: CorpusForm, corpora: Sequence[Corpus], *, jsonl: bool) -> tuple[str, bool]:
    """A pair as it is written, and whether it was changed for that."""
    if form == "texts":
        return f"{pair.target}\n" + "\n" * corpora[0].documents, False
    texts = [pair.target, *pair.source.split("\t")] if form == "labelled" else [pair.source, pair.target]
    if jsonl:
        names = ("label", "text", "text2") if form == "labelled" else ("source", "target")
        return json.dumps(dict(zip(names, texts, strict=False)), ensure_ascii=False) + "\n", False
    cells = [re.sub(r"[\t\r\n]+", " ", text) for text in texts]
    return "\t".join(cells) + "\n", cells != texts
