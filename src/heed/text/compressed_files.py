"""A file's bytes as a stream, decompressed while they are read.

Enters: a path, perhaps ending in ``.gz`` or ``.zst``, or ``-`` for standard input, which is never decompressed. Leaves:
an open stream. A truncated file gives all that is there, then an error. Knows nothing of text.
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
_PACKED_CHUNK = 1 << 9  # small, because zstd unpacks repetitive text to thousands of times its packed size


@contextlib.contextmanager
def open_decompressed(path: str) -> Iterator[BinaryIO]:
    """A stream of a file's bytes, decompressed while it is read."""
    if path == STANDARD_INPUT:
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
