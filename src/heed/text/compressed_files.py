"""Opens plain, gzip and zstd files, or standard input, as one stream of decompressed bytes.

Enters: a path, decompressed by its suffix ``.gz`` or ``.zst``, or ``-`` for standard input, which is never
decompressed. Leaves: an open stream. A truncated file yields all its data, then an error. Knows nothing of text.
"""

import contextlib
import functools
import io
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Protocol

from heed.errors import DataError

STANDARD_INPUT = "-"
_BUFFER = 1 << 17
_COMPRESSED_CHUNK = 1 << 9  # small, because zstd can expand repetitive text thousands of times


@contextlib.contextmanager
def open_decompressed(path: str) -> Iterator[BinaryIO]:
    if path == STANDARD_INPUT:
        stream = getattr(sys.stdin, "buffer", None)
        if stream is None:
            raise DataError(f"standard input cannot be read: it is closed or has no byte stream (found {sys.stdin!r})")
        yield stream
        return
    with _open_file(path) as file:
        match os.path.splitext(path)[1].lower():
            case ".gz":
                new_decompressor = functools.partial(zlib.decompressobj, wbits=31)  # 31: gzip header and checksum
                yield io.BufferedReader(_DecompressedFile(file, "gzip", new_decompressor, zlib.error), _BUFFER)
            case ".zst":
                zstandard = _import_zstandard(path)
                new_decompressor = zstandard.ZstdDecompressor().decompressobj
                yield io.BufferedReader(_DecompressedFile(file, "zstd", new_decompressor, zstandard.ZstdError), _BUFFER)
            case _:
                yield file


def _open_file(path: str) -> BinaryIO:
    try:
        return open(path, "rb", buffering=_BUFFER)
    except OSError as error:
        raise DataError(f"{path}: cannot be opened: {error.strerror}") from error


def _import_zstandard(path: str) -> Any:
    try:
        import zstandard  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise DataError(f"{path}: reading .zst needs the package zstandard: pip install zstandard") from error
    return zstandard


class _Decompressor(Protocol):
    """The common interface of zlib's and zstandard's `decompressobj`: decompresses one member of a file."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


class _DecompressedFile(io.RawIOBase):
    """The decompressed bytes of a gzip or zstd file of one or more members; EOFError where it is truncated.

    Not gzip.open, which loses the data just before a truncation, nor zstandard's reader, which takes it for the end.
    """

    def __init__(
        self, file: BinaryIO, format_name: str, new_decompressor: Callable[[], _Decompressor], error: type[Exception]
    ) -> None:
        self._file, self._format_name, self._new_decompressor, self._error = file, format_name, new_decompressor, error
        self._decompressor: _Decompressor | None = new_decompressor()  # None between members: a file may end only there
        self._compressed = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._ready:
            self._compressed = self._compressed or self._file.read(_COMPRESSED_CHUNK)
            if not self._compressed:
                if self._decompressor is None:
                    return 0
                raise EOFError(f"the {self._format_name} data are truncated")
            self._ready = memoryview(self._decompress())
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _decompress(self) -> bytes:
        decompressor = self._decompressor or self._new_decompressor()
        try:
            data = decompressor.decompress(self._compressed)
        except self._error as error:
            raise OSError(f"not {self._format_name} data, or damaged ({error})") from error
        self._compressed = decompressor.unused_data if decompressor.eof else b""
        self._decompressor = None if decompressor.eof else decompressor
        return data
