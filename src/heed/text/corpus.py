"""Reads a corpus from text files as a stream of sentence pairs.

Enters: two parallel files, or one TSV, CSV or JSONL file, or one file of monolingual text; plain, ``.gz`` or ``.zst``,
or standard input. Leaves: a stream of `Pair` objects in constant memory: one line and a few buffers at a time, and a
line or document longer than a fixed limit is refused, so that a compressed file cannot fill the memory. A monolingual
text is a pair with an empty source; a labelled text is a pair whose target is the label. Invalid text raises a
`DataError` that names file and line. Nothing is trimmed, dropped or normalised: an empty line is an empty string. Knows
nothing of tokens.
"""

import functools
import hashlib
import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from heed.errors import DataError
from heed.text.compressed_files import STANDARD_INPUT, open_decompressed
from heed.text.rows import ColumnSelection, csv_rows, drop_trailing_blank, get_text, is_blank, parse_object

LONGEST_LINE = 4 * 2**20  # bytes, line end included; in TSV and JSONL a line is a whole pair
LONGEST_DOCUMENT = 4 * LONGEST_LINE  # characters
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_FORMAT_HINTS = {
    b"\xff\xfe": "looks like UTF-16; convert it to UTF-8",
    b"\xfe\xff": "looks like UTF-16; convert it to UTF-8",
    b"\x1f\x8b": "looks like gzip; decompress it, or rename it to end in .gz",
    b"\x28\xb5\x2f\xfd": "looks like zstd; decompress it, or rename it to end in .zst",
}

OnBadRow = Callable[[DataError], None]


@dataclass(frozen=True)
class Corpus:
    """The files of a corpus: two parallel files, one TSV, CSV or JSONL file, or one file of monolingual text.

    A path ending in ``.gz`` or ``.zst`` is decompressed while it is read; ``-`` is standard input, never decompressed.
    """

    source: str | None = None
    target: str | None = None
    pairs: str | None = None
    text: str | None = None
    documents: bool = False  # texts are separated by empty lines and may have several lines
    labelled: bool = False  # a row of `pairs` is a label and one or two texts
    pairs_format: Literal["tsv", "csv", "jsonl"] | None = None  # None: by the suffix of `pairs`
    columns: str | None = None  # of a TSV or CSV file: `2,3`, or names in its header; None: all columns
    source_key: str = "source"  # of a JSONL object; `translation.en` is a nested key
    target_key: str = "target"
    weight: float = 1.0
    subset: "PairSubset | None" = None  # None: all pairs

    def __post_init__(self) -> None:
        given = tuple(bool(path) for path in (self.source, self.target, self.pairs, self.text))
        two_files, one_file = given == (True, True, False, False), given == (False, False, True, False)
        if not two_files and not one_file and given != (False, False, False, True):
            paths = ", ".join(f"{name} = {getattr(self, name)!r}" for name in ("source", "target", "pairs", "text"))
            raise DataError(f"a corpus is either source and target, or pairs, or text: found {paths}")
        if self.source == self.target == STANDARD_INPUT:
            raise DataError("source = '-' and target = '-': standard input can be read only once")
        if two_files and self.pairs_format is not None:
            raise DataError(f"pairs_format = {self.pairs_format!r} is for pairs, but {self.name} is source and target")
        if one_file and self.format not in ("tsv", "csv", "jsonl"):
            option = f"--pairs {self.pairs}" if self.pairs_format is None else f"--pairs-format {self.pairs_format}"
            raise DataError(
                f"{option}: expected a name ending in .tsv, .csv or .jsonl (then perhaps .gz or .zst), or else "
                "--pairs-format tsv, csv or jsonl"
            )
        if self.columns is not None:
            if self.format not in ("tsv", "csv"):
                raise DataError(f"--columns {self.columns} is for .tsv and .csv files, found {self.name}")
            ColumnSelection(self.columns, labelled=True)
        if not (self.weight > 0 and math.isfinite(self.weight)):
            raise DataError(f"weight = {self.weight!r} of {self.name}: expected a finite number greater than 0")

    @property
    def name(self) -> str:
        """The name in messages: ``a.en + a.de`` or ``a.tsv``."""
        name = " + ".join(display_name(path) for path in (self.source, self.target, self.pairs, self.text) if path)
        return f"{name}, held out" if self.subset is not None and self.subset.held_out else name

    @property
    def format(self) -> str:
        """How lines are parsed: ``tsv``, ``csv``, ``jsonl``, ``lines`` (plain text), or an unsupported suffix."""
        if not self.pairs:
            return "lines"
        stem, suffix = os.path.splitext(self.pairs.lower())
        if suffix in (".gz", ".zst"):
            suffix = os.path.splitext(stem)[1]
        return self.pairs_format or suffix.removeprefix(".")


@dataclass(frozen=True, slots=True)
class Pair:
    """A sentence and its translation, and their 1-based line number, for messages.

    The source of a labelled pair of texts is both texts, separated by a tab.
    """

    source: str
    target: str
    line: int


@dataclass(frozen=True)
class PairSubset:
    """The held-out pairs of a corpus, given by their hashes, or the remaining training pairs."""

    hashes: frozenset[int]
    held_out: bool

    def __contains__(self, pair: Pair) -> bool:
        return (pair_hash(pair) in self.hashes) == self.held_out


def pair_hash(pair: Pair) -> int:
    """A 64-bit hash of a pair's texts that is the same in every process."""
    text = f"{len(pair.source)} {pair.source}{pair.target}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())


def read_pairs(corpus: Corpus, on_bad_row: OnBadRow | None = None) -> Iterator[Pair]:
    """The pairs of a corpus in order. Files are opened when the first pair is requested.

    on_bad_row: called with the error of an invalid row, which is then skipped; None: the first invalid row raises.
    """
    pairs = _read_all(corpus, on_bad_row)
    return pairs if corpus.subset is None else filter(corpus.subset.__contains__, pairs)


def _read_all(corpus: Corpus, on_bad_row: OnBadRow | None) -> Iterator[Pair]:
    if corpus.text:
        return (_read_documents if corpus.documents else _read_texts)(corpus.text, on_bad_row)
    if corpus.source and corpus.target:
        return _read_two_files(corpus.source, corpus.target, on_bad_row)
    return _read_jsonl(corpus, on_bad_row) if corpus.format == "jsonl" else _read_table(corpus, on_bad_row)


def read_lines(path: str) -> Iterator[str]:
    """The lines of a text file (plain, .gz, .zst, or ``-``) without line ends; only \\n and \\r\\n end a line."""
    return (text for _, text in _numbered_lines(path, None))


def _numbered_lines(path: str, on_bad_row: OnBadRow | None) -> Iterator[tuple[int, str]]:
    for line, raw in enumerate(_read_raw_lines(path), 1):
        try:
            text = _decode(raw, path, line)
        except DataError as error:
            _raise_or_skip(error, on_bad_row)
        else:
            yield line, text


def _raise_or_skip(error: DataError, on_bad_row: OnBadRow | None) -> None:
    if on_bad_row is None:
        raise error from None
    on_bad_row(error)


def _read_texts(path: str, on_bad_row: OnBadRow | None) -> Iterator[Pair]:
    return (Pair("", text, line) for line, text in _numbered_lines(path, on_bad_row))


def _read_documents(path: str, on_bad_row: OnBadRow | None) -> Iterator[Pair]:
    """Read documents separated by one or more empty lines."""
    lines = _numbered_lines(path, on_bad_row)
    for is_document, group in itertools.groupby(lines, key=lambda numbered_line: bool(numbered_line[1].strip())):
        if is_document:
            first, texts = _read_document(group, path)
            yield Pair("", "\n".join(texts), first)


def _read_document(document: Iterator[tuple[int, str]], path: str) -> tuple[int, list[str]]:
    """The number of a document's first line, and its lines; a document that is too long raises."""
    first, text = next(document)
    texts, characters = [text], len(text)
    for _, text in document:
        texts.append(text)
        characters += len(text) + 1
        if characters > LONGEST_DOCUMENT:
            raise DataError(
                f"{location(path, first)}: a document of more than {LONGEST_DOCUMENT:,} characters begins here; "
                "expected an empty line between documents, or data.documents = false, where each line is a text"
            )
    return first, texts


def _read_two_files(source_path: str, target_path: str, on_bad_row: OnBadRow | None) -> Iterator[Pair]:
    sources, targets = _read_raw_lines(source_path), _read_raw_lines(target_path)
    for line, (source, target) in enumerate(itertools.zip_longest(sources, targets), 1):
        if source is None:
            raise _line_count_mismatch(source_path, target_path, line, targets)
        if target is None:
            raise _line_count_mismatch(target_path, source_path, line, sources)
        try:
            pair = Pair(_decode(source, source_path, line), _decode(target, target_path, line), line)
        except DataError as error:
            _raise_or_skip(error, on_bad_row)
        else:
            yield pair


def _line_count_mismatch(shorter: str, longer: str, line: int, rest: Iterator[bytes]) -> DataError:
    shorter_lines, longer_lines = line - 1, line + sum(1 for _ in rest)
    return DataError(
        f"{location(longer, line)}: this line has no counterpart: {display_name(shorter)} ends after line "
        f"{shorter_lines}, {display_name(longer)} after line {longer_lines}; line n of the target must translate line "
        "n of the source"
    )


def _read_table(corpus: Corpus, on_bad_row: OnBadRow | None) -> Iterator[Pair]:
    path, columns = str(corpus.pairs), ColumnSelection(corpus.columns, labelled=corpus.labelled)
    lines = _numbered_lines(path, on_bad_row)
    if corpus.format == "csv":
        rows = csv_rows(
            lines,
            lambda line, why: _raise_or_skip(DataError(f"{location(path, line)}: not valid CSV: {why}"), on_bad_row),
        )
    else:
        rows = ((line, text.split("\t")) for line, text in lines)
    for row_index, (line, cells) in enumerate(drop_trailing_blank(rows, is_blank)):
        try:
            if row_index == 0 and columns.named:
                columns.resolve(cells)
                continue
        except DataError as error:  # an error of the whole file, which cannot be skipped
            raise DataError(f"{location(path, line)}: {error}") from None
        try:
            source, target = columns.select(cells, first=row_index == 0)
        except DataError as error:
            _raise_or_skip(DataError(f"{location(path, line)}: {error}"), on_bad_row)
        else:
            yield Pair(source, target, line)


def _read_jsonl(corpus: Corpus, on_bad_row: OnBadRow | None) -> Iterator[Pair]:
    path = str(corpus.pairs)
    for line, text in drop_trailing_blank(_numbered_lines(path, on_bad_row), lambda text: not text.strip()):
        try:
            pair = (
                _parse_json_pair(corpus, parse_object(text, location(path, line)), line)
                if text.strip()
                else Pair("", "", line)
            )
        except DataError as error:
            _raise_or_skip(error, on_bad_row)
        else:
            yield pair


def _parse_json_pair(corpus: Corpus, row: dict[str, Any], line: int) -> Pair:
    where, second_key = location(str(corpus.pairs), line), f"{corpus.source_key}2"
    source = get_text(row, corpus.source_key, where)
    target = get_text(row, corpus.target_key, where, is_label=corpus.labelled)
    if corpus.labelled:
        texts = [source] + ([get_text(row, second_key, where)] if second_key in row else [])
        source = "\t".join(text.replace("\t", " ") for text in texts)
    return Pair(source, target, line)


def _decode(raw: bytes, path: str, line: int) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        column = len(raw[: error.start].decode()) + 1
        hints = (hint for signature, hint in _FORMAT_HINTS.items() if line == 1 and raw.startswith(signature))
        raise DataError(
            f"{location(path, line)}: not valid UTF-8: byte 0x{raw[error.start]:02x} at column {column}: "
            f"{next(hints, 'convert the file to UTF-8')}"
        ) from None
    if "\0" in text:
        raise DataError(
            f"{location(path, line)}: NUL byte at column {text.index(chr(0)) + 1}: expected UTF-8 text, not UTF-16 or "
            "binary data"
        )
    return text.removesuffix("\n").removesuffix("\r")


def display_name(path: str) -> str:
    """A path in messages."""
    return "standard input" if path == STANDARD_INPUT else path


def location(path: str, line: int) -> str:
    """A line in messages: `a.tsv:7`."""
    return f"{display_name(path)}:{line}"


def _read_raw_lines(path: str) -> Iterator[bytes]:
    """The decompressed lines of a file, with line ends and without a byte-order mark."""
    line = 0
    with open_decompressed(path) as stream:
        try:
            for line, raw in enumerate(iter(functools.partial(stream.readline, LONGEST_LINE + 1), b""), 1):
                if len(raw) > LONGEST_LINE:
                    raise DataError(
                        f"{location(path, line)}: a line of more than {LONGEST_LINE:,} bytes, which is the limit: is "
                        "this text with line ends? Break the line up, or remove it"
                    )
                if line == 1 and raw.startswith(_BYTE_ORDER_MARK):
                    if len(raw) > len(_BYTE_ORDER_MARK):
                        yield raw[len(_BYTE_ORDER_MARK) :]
                else:
                    yield raw
        except (OSError, EOFError) as error:
            raise DataError(f"{location(path, line + 1)}: cannot be read from here on: {error}") from error


def append_pairs(file: Path, pairs: Iterable[Pair]) -> None:
    """Write pairs to the end of a JSON Lines file, which is created if it does not exist."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as lines:
        for pair in pairs:
            lines.write(json.dumps({"source": pair.source, "target": pair.target}, ensure_ascii=False) + "\n")
