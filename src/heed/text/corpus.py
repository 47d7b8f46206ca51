"""Parallel text as a stream of sentence pairs.

Enters: two files whose lines belong together, or one TSV or JSONL file; plain, ``.gz`` or ``.zst``, or standard input.
Leaves: one `Pair` after another, however long the corpus: no more than a line and a few buffers is held at a time.
Whatever is not text is refused with a `DataError` that names file and line. Nothing is trimmed, dropped or
normalised: an empty line is an empty string, and what to do with it is decided elsewhere. Knows nothing of tokens.
"""

import contextlib
import functools
import io
import itertools
import json
import math
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, Protocol

from heed.errors import DataError

_STANDARD_INPUT = "-"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BUFFER = 1 << 17
_PACKED_CHUNK = 1 << 9  # small, because zstd unpacks repetitive text to thousands of times its packed size
_NOT_TEXT = {
    b"\xff\xfe": "looks like UTF-16; convert it to UTF-8",
    b"\xfe\xff": "looks like UTF-16; convert it to UTF-8",
    b"\x1f\x8b": "looks like gzip; unpack it, or let its name end in .gz",
    b"\x28\xb5\x2f\xfd": "looks like zstd; unpack it, or let its name end in .zst",
}


@dataclass(frozen=True)
class Corpus:
    """Where pairs come from: two files line by line, or one TSV or JSONL file.

    A path ending in ``.gz`` or ``.zst`` is unpacked while it is read; ``-`` is standard input, never unpacked.
    """

    source: str | None = None
    target: str | None = None
    pairs: str | None = None
    pairs_format: Literal["tsv", "jsonl"] | None = None  # None: by the name of `pairs`
    source_key: str = "source"  # of a JSONL object
    target_key: str = "target"
    weight: float = 1.0

    def __post_init__(self) -> None:
        two_files = bool(self.source) and bool(self.target) and self.pairs is None
        one_file = bool(self.pairs) and self.source is None and self.target is None
        if not two_files and not one_file:
            found = f"source = {self.source!r}, target = {self.target!r}, pairs = {self.pairs!r}"
            raise DataError(f"a corpus is either source and target, or pairs: found {found}")
        if self.source == self.target == _STANDARD_INPUT:
            raise DataError("source = '-' and target = '-': standard input can be read only once")
        if two_files and self.pairs_format is not None:
            raise DataError(f"pairs_format = {self.pairs_format!r} is for pairs, but {self.name} is source and target")
        if one_file and self.format not in ("tsv", "jsonl"):
            raise DataError(
                f"pairs = {self.pairs!r} with pairs_format = {self.pairs_format!r}: expected a name ending in .tsv or "
                ".jsonl (then perhaps .gz or .zst), or else pairs_format = 'tsv' or 'jsonl'"
            )
        if not (self.weight > 0 and math.isfinite(self.weight)):
            raise DataError(f"weight = {self.weight!r} of {self.name}: expected a finite number greater than 0")

    @property
    def name(self) -> str:
        """What messages call it: ``a.en + a.de`` or ``a.tsv``."""
        return " + ".join(_spoken(path) for path in (self.source, self.target, self.pairs) if path)

    @property
    def format(self) -> str:
        """How a line is to be read: ``tsv``, ``jsonl``, ``lines`` (two files), or whatever the name ends in."""
        if not self.pairs:
            return "lines"
        stem, ending = os.path.splitext(self.pairs.lower())
        if ending in (".gz", ".zst"):
            ending = os.path.splitext(stem)[1]
        return self.pairs_format or ending.removeprefix(".")


@dataclass(frozen=True, slots=True)
class Pair:
    """A sentence and its translation, and the 1-based line they stand on, for messages."""

    source: str
    target: str
    line: int


def read_pairs(corpus: Corpus) -> Iterator[Pair]:
    """The pairs of a corpus in order. Files are opened when the first pair is asked for."""
    if corpus.source and corpus.target:
        return _read_two_files(corpus.source, corpus.target)
    if corpus.format == "tsv":
        return _read_tsv(str(corpus.pairs))
    return _read_jsonl(str(corpus.pairs), corpus.source_key, corpus.target_key)


def read_lines(path: str) -> Iterator[str]:
    """The lines of one text file (plain, .gz, .zst, or ``-``) without their ends, which are \\n or \\r\\n only."""
    for line, raw in enumerate(_read_raw_lines(path), 1):
        yield _decode(raw, path, line)


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


def _read_tsv(path: str) -> Iterator[Pair]:
    for line, text in enumerate(read_lines(path), 1):
        columns = text.split("\t")
        if len(columns) != 2:
            raise DataError(f"{_at(path, line)}: expected 2 columns, one tab between them, found {len(columns)}")
        yield Pair(columns[0], columns[1], line)


def _read_jsonl(path: str, source_key: str, target_key: str) -> Iterator[Pair]:
    lines = enumerate(read_lines(path), 1)
    for line, text in lines:
        if not text and next(lines, None) is None:
            return  # one empty line at the very end is a habit of editors, not a row
        row = parse_object(text, path, line)
        yield Pair(take_text(row, source_key, path, line), take_text(row, target_key, path, line), line)


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
    return "standard input" if path == _STANDARD_INPUT else path


def _at(path: str, line: int) -> str:
    return f"{_spoken(path)}:{line}"


def _read_raw_lines(path: str) -> Iterator[bytes]:
    """The lines of a file, unpacked, with their ends but without a byte-order mark."""
    line = 0
    with _opened(path) as stream:
        try:
            for line, raw in enumerate(stream, 1):
                if line == 1 and raw.startswith(_BYTE_ORDER_MARK):
                    if len(raw) > len(_BYTE_ORDER_MARK):
                        yield raw[len(_BYTE_ORDER_MARK) :]
                else:
                    yield raw
        except (OSError, EOFError) as error:
            raise DataError(f"{_at(path, line + 1)}: cannot be read from here on: {error}") from error


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Iterable[bytes]]:
    if path == _STANDARD_INPUT:
        stream = getattr(sys.stdin, "buffer", None)
        if stream is None:
            raise DataError(f"standard input cannot be read: it is closed, or not made of bytes (found {sys.stdin!r})")
        yield stream
        return
    with _open_file(path) as file:
        match os.path.splitext(path)[1].lower():
            case ".gz":
                start = functools.partial(zlib.decompressobj, wbits=31)  # 31: gzip's header and checksum around it
                yield io.BufferedReader(_Unpacked(file, "gzip", start, zlib.error), _BUFFER)
            case ".zst":
                zstandard = _import_zstandard(path)
                start = zstandard.ZstdDecompressor().decompressobj
                yield io.BufferedReader(_Unpacked(file, "zstd", start, zstandard.ZstdError), _BUFFER)
            case _:
                yield file


def _open_file(path: str) -> BinaryIO:
    try:
        return open(path, "rb", buffering=_BUFFER)
    except OSError as error:
        raise DataError(f"{path}: cannot be opened: {error.strerror}") from error


def _import_zstandard(path: str) -> Any:
    try:
        import zstandard  # noqa: PLC0415 - only who has .zst files needs it
    except ImportError as error:
        raise DataError(f"{path}: reading .zst needs the package zstandard: pip install zstandard") from error
    return zstandard


class _Unpacker(Protocol):
    """What zlib and zstandard both call a decompression object: it unpacks one member of a file."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


class _Unpacked(io.RawIOBase):
    """The unpacked bytes of a gzip or zstd file of one or more members; EOFError where it was cut short.

    Not gzip.open, which loses the text just before a cut, nor zstandard's reader, which takes a cut for the end.
    """

    def __init__(self, file: BinaryIO, kind: str, start: Callable[[], _Unpacker], fault: type[Exception]) -> None:
        self._file, self._kind, self._start, self._fault = file, kind, start, fault
        self._unpacker: _Unpacker | None = start()  # None between two members, where alone a file may end
        self._packed = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill `buffer` as far as there is something ready; 0 at the end of the file."""
        while not self._ready:
            self._packed = self._packed or self._file.read(_PACKED_CHUNK)
            if not self._packed:
                if self._unpacker is None:
                    return 0
                raise EOFError(f"its {self._kind} data are cut short")
            self._ready = memoryview(self._unpack())
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _unpack(self) -> bytes:
        unpacker = self._unpacker or self._start()
        try:
            text = unpacker.decompress(self._packed)
        except self._fault as error:
            raise OSError(f"not {self._kind} data, or damaged ({error})") from error
        self._packed = unpacker.unused_data if unpacker.eof else b""
        self._unpacker = None if unpacker.eof else unpacker
        return text
