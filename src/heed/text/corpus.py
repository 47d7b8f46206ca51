"""Text files as a stream of sentence pairs.

Enters: two files whose lines belong together, or one TSV, CSV or JSONL file, or one file of single texts; plain,
``.gz`` or ``.zst``, or standard input. Leaves: one `Pair` after another, however long the corpus: no more than a line
and a few buffers is held at a time, and a line, or a document, longer than a fixed limit is refused, so that a
compressed file cannot fill the memory. A single text is a pair whose source is empty; a labelled text has its label for
a target. Whatever is not text is refused with a `DataError` that names file and line. Nothing is trimmed, dropped or
normalised: an empty line is an empty string, for others to decide on. Knows nothing of tokens.
"""

import functools
import hashlib
import itertools
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from heed.errors import DataError
from heed.text.compressed_files import STANDARD_INPUT, open_decompressed
from heed.text.rows import ColumnSelection, csv_rows, drop_trailing_blank, get_text, is_blank, parse_object

LONGEST_LINE = 4 * 2**20  # bytes with the line's end; of the pair as a whole in TSV and JSONL
LONGEST_DOCUMENT = 4 * LONGEST_LINE  # characters
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NOT_TEXT = {
    b"\xff\xfe": "looks like UTF-16; convert it to UTF-8",
    b"\xfe\xff": "looks like UTF-16; convert it to UTF-8",
    b"\x1f\x8b": "looks like gzip; unpack it, or let its name end in .gz",
    b"\x28\xb5\x2f\xfd": "looks like zstd; unpack it, or let its name end in .zst",
}

OnBadRow = Callable[[DataError], None]


@dataclass(frozen=True)
class Corpus:
    """Where pairs come from: two files line by line, one TSV, CSV or JSONL file, or one file of texts alone.

    A path ending in ``.gz`` or ``.zst`` is unpacked while it is read; ``-`` is standard input, never unpacked.
    """

    source: str | None = None
    target: str | None = None
    pairs: str | None = None
    text: str | None = None
    documents: bool = False  # a text goes on to an empty line, and not only to the end of its line
    labelled: bool = False  # a row of `pairs` is a label, a text and perhaps a second one
    pairs_format: Literal["tsv", "csv", "jsonl"] | None = None  # None: by the name of `pairs`
    columns: str | None = None  # of a TSV or CSV file, `2,3` or by the names in its first row; None: all there are
    source_key: str = "source"  # of a JSONL object; `translation.en` is the key of an object inside it
    target_key: str = "target"
    weight: float = 1.0
    subset: "PairSubset | None" = None  # None: all pairs

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
        if one_file and self.format not in ("tsv", "csv", "jsonl"):
            found = f"--pairs {self.pairs}" if self.pairs_format is None else f"--pairs-format {self.pairs_format}"
            raise DataError(
                f"{found}: expected a name ending in .tsv, .csv or .jsonl (then perhaps .gz or .zst), or else "
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
        """What messages call it: ``a.en + a.de`` or ``a.tsv``."""
        name = " + ".join(_spoken(path) for path in (self.source, self.target, self.pairs, self.text) if path)
        return f"{name}, held out" if self.subset is not None and self.subset.held_out else name

    @property
    def format(self) -> str:
        """How a line is to be read: ``tsv``, ``csv``, ``jsonl``, ``lines`` (of text), or whatever the name ends in."""
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


@dataclass(frozen=True)
class PairSubset:
    """The pairs of a corpus that are held out, by their hashes, or all others."""

    hashes: frozenset[int]
    held_out: bool

    def __contains__(self, pair: Pair) -> bool:
        return (pair_hash(pair) in self.hashes) == self.held_out


def pair_hash(pair: Pair) -> int:
    """A number of 64 bits that is the same for the same texts in every run."""
    text = f"{len(pair.source)} {pair.source}{pair.target}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())


def read_pairs(corpus: Corpus, skip: OnBadRow | None = None) -> Iterator[Pair]:
    """The pairs of a corpus in order. Files are opened when the first pair is asked for.

    skip: called with what is wrong with a row, which is then left out; none: the first such row raises.
    """
    pairs = _read_all(corpus, skip)
    return pairs if corpus.subset is None else filter(corpus.subset.__contains__, pairs)


def _read_all(corpus: Corpus, skip: OnBadRow | None) -> Iterator[Pair]:
    if corpus.text:
        return (_read_documents if corpus.documents else _read_texts)(corpus.text, skip)
    if corpus.source and corpus.target:
        return _read_two_files(corpus.source, corpus.target, skip)
    return _read_jsonl(corpus, skip) if corpus.format == "jsonl" else _read_table(corpus, skip)


def read_lines(path: str) -> Iterator[str]:
    """The lines of one text file (plain, .gz, .zst, or ``-``) without their ends, which are \\n or \\r\\n only."""
    return (text for _, text in _numbered_lines(path, None))


def _numbered_lines(path: str, skip: OnBadRow | None) -> Iterator[tuple[int, str]]:
    for line, raw in enumerate(_read_raw_lines(path), 1):
        try:
            text = _decode(raw, path, line)
        except DataError as error:
            _refuse(error, skip)
        else:
            yield line, text


def _refuse(error: DataError, skip: OnBadRow | None) -> None:
    if skip is None:
        raise error from None
    skip(error)


def _read_texts(path: str, skip: OnBadRow | None) -> Iterator[Pair]:
    return (Pair("", text, line) for line, text in _numbered_lines(path, skip))


def _read_documents(path: str, skip: OnBadRow | None) -> Iterator[Pair]:
    """Lines up to an empty one are a document; several empty lines part two documents as one does."""
    lines = _numbered_lines(path, skip)
    for is_text, group in itertools.groupby(lines, key=lambda numbered: bool(numbered[1].strip())):
        if is_text:
            first, texts = _within_limit(group, path)
            yield Pair("", "\n".join(texts), first)


def _within_limit(document: Iterator[tuple[int, str]], path: str) -> tuple[int, list[str]]:
    """The lines of a document and the number of the first, unless they are too many."""
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


def _read_two_files(source_path: str, target_path: str, skip: OnBadRow | None) -> Iterator[Pair]:
    sources, targets = _read_raw_lines(source_path), _read_raw_lines(target_path)
    for line, (source, target) in enumerate(itertools.zip_longest(sources, targets), 1):
        if source is None:
            raise _unequal(source_path, target_path, line, targets)
        if target is None:
            raise _unequal(target_path, source_path, line, sources)
        try:
            pair = Pair(_decode(source, source_path, line), _decode(target, target_path, line), line)
        except DataError as error:
            _refuse(error, skip)
        else:
            yield pair


def _unequal(shorter: str, longer: str, line: int, rest: Iterator[bytes]) -> DataError:
    ended, lines = line - 1, line + sum(1 for _ in rest)
    return DataError(
        f"{location(longer, line)}: no line to pair this with: {_spoken(shorter)} ended after {ended} lines, "
        f"{_spoken(longer)} has {lines}; line n of one must translate line n of the other"
    )


def _read_table(corpus: Corpus, skip: OnBadRow | None) -> Iterator[Pair]:
    path, columns = str(corpus.pairs), ColumnSelection(corpus.columns, labelled=corpus.labelled)
    lines = _numbered_lines(path, skip)
    if corpus.format == "csv":
        rows = csv_rows(
            lines, lambda line, why: _refuse(DataError(f"{location(path, line)}: not valid CSV: {why}"), skip)
        )
    else:
        rows = ((line, text.split("\t")) for line, text in lines)
    for number, (line, cells) in enumerate(drop_trailing_blank(rows, is_blank)):
        try:
            if number == 0 and columns.are_named:
                columns.find(cells)
                continue
        except DataError as error:  # of the whole file, not of a row
            raise DataError(f"{location(path, line)}: {error}") from None
        try:
            source, target = columns.take(cells, first=number == 0)
        except DataError as error:
            _refuse(DataError(f"{location(path, line)}: {error}"), skip)
        else:
            yield Pair(source, target, line)


def _read_jsonl(corpus: Corpus, skip: OnBadRow | None) -> Iterator[Pair]:
    path = str(corpus.pairs)
    for line, text in drop_trailing_blank(_numbered_lines(path, skip), lambda text: not text.strip()):
        try:
            pair = (
                _pair_of_object(corpus, parse_object(text, location(path, line)), line)
                if text.strip()
                else Pair("", "", line)
            )
        except DataError as error:
            _refuse(error, skip)
        else:
            yield pair


def _pair_of_object(corpus: Corpus, row: dict[str, Any], line: int) -> Pair:
    where, second_key = location(str(corpus.pairs), line), f"{corpus.source_key}2"
    source = get_text(row, corpus.source_key, where)
    target = get_text(row, corpus.target_key, where, is_label=corpus.labelled)
    if corpus.labelled:
        both = [source] + ([get_text(row, second_key, where)] if second_key in row else [])
        source = "\t".join(one.replace("\t", " ") for one in both)
    return Pair(source, target, line)


def _decode(raw: bytes, path: str, line: int) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        column = len(raw[: error.start].decode()) + 1
        hints = (hint for start, hint in _NOT_TEXT.items() if line == 1 and raw.startswith(start))
        raise DataError(
            f"{location(path, line)}: not valid UTF-8: byte 0x{raw[error.start]:02x} at column {column}: "
            f"{next(hints, 'convert the file to UTF-8')}"
        ) from None
    if "\0" in text:
        raise DataError(
            f"{location(path, line)}: NUL byte at column {text.index(chr(0)) + 1}: is this UTF-16, or binary?"
        )
    return text.removesuffix("\n").removesuffix("\r")


def _spoken(path: str) -> str:
    return "standard input" if path == STANDARD_INPUT else path


def location(path: str, line: int) -> str:
    """What messages call a line: `a.tsv:7`."""
    return f"{_spoken(path)}:{line}"


def _read_raw_lines(path: str) -> Iterator[bytes]:
    """The lines of a file, unpacked, with their ends but without a byte-order mark."""
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
