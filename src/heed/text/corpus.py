"""Text as a stream of pairs.

Enters: two files whose lines belong together, or one TSV or JSONL file; plain, ``.gz`` or ``.zst``, or standard input.
Leaves: one `Pair` after another, however long the corpus: no more than a line and a few buffers is held at a time.
A text alone is a pair whose source is empty; a text with a label has the label for a target.
Whatever is not text is refused with a `DataError` that names file and line. Nothing is trimmed, dropped or
normalised: an empty line is an empty string, and what to do with it is decided elsewhere. Knows nothing of tokens.
"""

import itertools
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from heed.errors import DataError
from heed.text.packed_files import STANDARD_INPUT, opened

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NOT_TEXT = {
    b"\xff\xfe": "looks like UTF-16; convert it to UTF-8",
    b"\xfe\xff": "looks like UTF-16; convert it to UTF-8",
    b"\x1f\x8b": "looks like gzip; unpack it, or let its name end in .gz",
    b"\x28\xb5\x2f\xfd": "looks like zstd; unpack it, or let its name end in .zst",
}


@dataclass(frozen=True)
class Corpus:
    """Where pairs come from: two files line by line, one TSV or JSONL file, or one file of texts alone.

    A path ending in ``.gz`` or ``.zst`` is unpacked while it is read; ``-`` is standard input, never unpacked.
    """

    source: str | None = None
    target: str | None = None
    pairs: str | None = None
    text: str | None = None
    documents: bool = False  # a text goes on to an empty line, and not only to the end of its line
    labelled: bool = False  # a row of `pairs` is a label, a text and perhaps a second one
    pairs_format: Literal["tsv", "jsonl"] | None = None  # None: by the name of `pairs`
    source_key: str = "source"  # of a JSONL object
    target_key: str = "target"
    weight: float = 1.0

    def __post_init__(self) -> None:
        given = tuple(bool(path) for path in (self.source, self.target, self.pairs, self.text))
        two_files, one_file = given == (True, True, False, False), given == (False, False, True, False)
        if not two_files and not one_file and given != (False, False, False, True):
            found = ", ".join(f"{name} = {getattr(self, name)!r}" for name in ("source", "target", "pairs", "text"))
            raise DataError(f"a corpus is either source and target, or pairs, or text: found {found}")
        if self.source == self.target == STANDARD_INPUT:
            raise DataError("source = '-' and target = '-': standard input can be read only once")
        if two_files and self.pairs_format is not None:
            raise DataError(f"pairs_format = {self.pairs_format!r} is for pairs, but {self.name} is source and target")
        if one_file and self.format not in ("tsv", "jsonl"):
            found = f"--pairs {self.pairs}" if self.pairs_format is None else f"pairs_format = {self.pairs_format!r}"
            raise DataError(
                f"{found}: expected a name ending in .tsv or .jsonl (then perhaps .gz or .zst); in Python, any name "
                "with pairs_format = 'tsv' or 'jsonl'"
            )
        if not (self.weight > 0 and math.isfinite(self.weight)):
            raise DataError(f"weight = {self.weight!r} of {self.name}: expected a finite number greater than 0")

    @property
    def name(self) -> str:
        """What messages call it: ``a.en + a.de`` or ``a.tsv``."""
        return " + ".join(_spoken(path) for path in (self.source, self.target, self.pairs, self.text) if path)

    @property
    def format(self) -> str:
        """How a line is to be read: ``tsv``, ``jsonl``, ``lines`` (of text), or whatever the name ends in."""
        if not self.pairs:
            return "lines"
        stem, ending = os.path.splitext(self.pairs.lower())
        if ending in (".gz", ".zst"):
            ending = os.path.splitext(stem)[1]
        return self.pairs_format or ending.removeprefix(".")


@dataclass(frozen=True, slots=True)
class Pair:
    """A sentence and its translation, and the 1-based line they stand on, for messages.

    Two texts that share a label are one source, a tab between them.
    """

    source: str
    target: str
    line: int


def read_pairs(corpus: Corpus) -> Iterator[Pair]:
    """The pairs of a corpus in order. Files are opened when the first pair is asked for."""
    if corpus.text:
        return _read_documents(corpus.text) if corpus.documents else _read_texts(corpus.text)
    if corpus.source and corpus.target:
        return _read_two_files(corpus.source, corpus.target)
    if corpus.format == "tsv":
        return _read_tsv(str(corpus.pairs), labelled=corpus.labelled)
    return _read_jsonl(corpus)


def read_lines(path: str) -> Iterator[str]:
    """The lines of one text file (plain, .gz, .zst, or ``-``) without their ends, which are \\n or \\r\\n only."""
    for line, raw in enumerate(_read_raw_lines(path), 1):
        yield _decode(raw, path, line)


def _read_texts(path: str) -> Iterator[Pair]:
    return (Pair("", text, line) for line, text in enumerate(read_lines(path), 1))


def _read_documents(path: str) -> Iterator[Pair]:
    """Lines up to an empty one are a document; several empty lines part two documents as one does."""
    lines = enumerate(read_lines(path), 1)
    for is_text, group in itertools.groupby(lines, key=lambda numbered: bool(numbered[1].strip())):
        if is_text:
            numbers, texts = zip(*group, strict=True)
            yield Pair("", "\n".join(texts), numbers[0])


def _read_two_files(source_path: str, target_path: str) -> Iterator[Pair]:
    sources, targets = _read_raw_lines(source_path), _read_raw_lines(target_path)
    for line, (source, target) in enumerate(itertools.zip_longest(sources, targets), 1):
        if source is None:
            raise _unequal(source_path, target_path, line, targets)
        if target is None:
            raise _unequal(target_path, source_path, line, sources)
        yield Pair(_decode(source, source_path, line), _decode(target, target_path, line), line)


def _unequal(shorter: str, longer: str, line: int, rest: Iterator[bytes]) -> DataError:
    ended, lines = line - 1, line + sum(1 for _ in rest)
    return DataError(
        f"{_at(longer, line)}: no line to pair this with: {_spoken(shorter)} ended after {ended} lines, "
        f"{_spoken(longer)} has {lines}; line n of one must translate line n of the other"
    )


def _read_tsv(path: str, *, labelled: bool) -> Iterator[Pair]:
    for line, text in enumerate(read_lines(path), 1):
        columns = text.split("\t")
        if labelled and len(columns) in (2, 3):
            yield Pair("\t".join(columns[1:]), columns[0], line)
        elif not labelled and len(columns) == 2:
            yield Pair(columns[0], columns[1], line)
        else:
            wanted = "a label and one or two texts, tabs between" if labelled else "2 columns, one tab between them"
            raise DataError(f"{_at(path, line)}: expected {wanted}, found {len(columns)}")


def _read_jsonl(corpus: Corpus) -> Iterator[Pair]:
    path, second_key = str(corpus.pairs), f"{corpus.source_key}2"
    lines = enumerate(read_lines(path), 1)
    for line, text in lines:
        if not text and next(lines, None) is None:
            return  # one empty line at the very end is a habit of editors, not a row
        row = parse_object(text, path, line)
        source, target = (take_text(row, key, path, line) for key in (corpus.source_key, corpus.target_key))
        if corpus.labelled:
            both = [source] + ([take_text(row, second_key, path, line)] if second_key in row else [])
            source = "\t".join(one.replace("\t", " ") for one in both)
        yield Pair(source, target, line)


def parse_object(text: str, path: str, line: int) -> dict[str, Any]:
    """The JSON object that a line is."""
    if not text.strip():
        raise DataError(f"{_at(path, line)}: blank line, expected a JSON object; remove the line")
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{_at(path, line)}: not valid JSON at column {error.colno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits; thousands of brackets
        raise DataError(f"{_at(path, line)}: JSON that cannot be read: {error}") from None
    if not isinstance(row, dict):
        raise DataError(f"{_at(path, line)}: expected a JSON object, found {type(row).__name__}")
    return row


def take_text(row: dict[str, Any], key: str, path: str, line: int) -> str:
    """The text that a JSON object has under a key."""
    if key not in row:
        found = ", ".join(repr(name) for name in row) or "none"
        raise DataError(f"{_at(path, line)}: no key {key!r}, the keys are {found}: set source_key and target_key")
    text = row[key]
    if not isinstance(text, str):
        raise DataError(f"{_at(path, line)}: the value of {key!r} must be a string, found {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{_at(path, line)}: the value of {key!r} has the unpaired surrogate {text[error.start]!r} "
            f"at character {error.start + 1}, which is not valid text"
        ) from None
    if "\0" in text:
        raise DataError(f"{_at(path, line)}: the value of {key!r} has a NUL at character {text.index(chr(0)) + 1}")
    return text


def _decode(raw: bytes, path: str, line: int) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        column = len(raw[: error.start].decode()) + 1
        hints = (hint for start, hint in _NOT_TEXT.items() if line == 1 and raw.startswith(start))
        raise DataError(
            f"{_at(path, line)}: not valid UTF-8: byte 0x{raw[error.start]:02x} at column {column}: "
            f"{next(hints, 'convert the file to UTF-8')}"
        ) from None
    if "\0" in text:
        raise DataError(f"{_at(path, line)}: NUL byte at column {text.index(chr(0)) + 1}: is this UTF-16, or binary?")
    return text.removesuffix("\n").removesuffix("\r")


def _spoken(path: str) -> str:
    return "standard input" if path == STANDARD_INPUT else path


def _at(path: str, line: int) -> str:
    return f"{_spoken(path)}:{line}"


def _read_raw_lines(path: str) -> Iterator[bytes]:
    """The lines of a file, unpacked, with their ends but without a byte-order mark."""
    line = 0
    with opened(path) as stream:
        try:
            for line, raw in enumerate(stream, 1):
                if line == 1 and raw.startswith(_BYTE_ORDER_MARK):
                    if len(raw) > len(_BYTE_ORDER_MARK):
                        yield raw[len(_BYTE_ORDER_MARK) :]
                else:
                    yield raw
        except (OSError, EOFError) as error:
            raise DataError(f"{_at(path, line + 1)}: cannot be read from here on: {error}") from error
