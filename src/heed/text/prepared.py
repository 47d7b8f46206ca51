"""Token ids on disk: a folder of arrays that is checked when it is opened, then memory-mapped.

    source.ids, target.ids     the ids of all sentences of one side, concatenated
    source.ends, target.ends   where each sentence of that side ends
    prepared.json              what was kept and left out, the dtype of an id, sizes and checksums; written last

A folder is never changed once it has its name, nor removed: whoever has it open or is about to open it can rely on it.
Opening reads every byte once, for the checksums (CRC-32, 4 GB/s on one core of an AMD EPYC). Whatever is not as it was
written is a `DataError`. Ids are without special tokens. Knows nothing of text, torch or batches.
"""

import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from heed.errors import DataError
from heed.text.word_cache import ConcatenatedIds

FORMAT = 3
FileName = Literal["source.ids", "source.ends", "target.ids", "target.ends"]
FILES: tuple[FileName, ...] = get_args(FileName)
_CHUNK = 1 << 20
_LARGEST_DESCRIPTION = 1 << 24
_ENDS = np.dtype("<i8")

IdType = Literal["<u2", "<u4"]


@dataclass(frozen=True)
class CorpusCounts:
    """What became of the pairs of one corpus."""

    name: str
    weight: float
    kept: NonNegativeInt
    empty: NonNegativeInt
    too_long: NonNegativeInt
    max_tokens: int

    def __str__(self) -> str:
        read = self.kept + self.empty + self.too_long
        left_out = f"{self.empty:,} empty, {self.too_long:,} longer than {self.max_tokens:,} tokens"
        return f"{self.name}: kept {self.kept:,} of {read:,}: {left_out}"


@dataclass(frozen=True)
class TokenizedSide:
    """All sentences of one side, concatenated."""

    ids: NDArray[Any]
    ends: NDArray[np.int64]

    def lengths(self) -> NDArray[np.int64]:
        """How long each sentence is."""
        return np.diff(self.ends, prepend=0)

    def __getitem__(self, number: int) -> NDArray[Any]:
        return self.ids[self.ends[number - 1] if number else 0 : self.ends[number]]


@dataclass(frozen=True)
class Prepared:
    """Pairs as ids; `corpora` says which came from where, in order. notes: messages for the user."""

    folder: Path
    source: TokenizedSide
    target: TokenizedSide
    corpora: tuple[CorpusCounts, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.source.ends)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    size: NonNegativeInt
    crc32: NonNegativeInt


class _Description(BaseModel):
    """What prepared.json holds. checksum: CRC-32 of all the rest of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    format: Literal[3]
    key: str
    ids: IdType
    corpora: tuple[CorpusCounts, ...]
    files: dict[FileName, _File] = Field(min_length=len(FILES))
    checksum: int = 0

    def sealed(self) -> "_Description":
        """A copy with the checksum of its content."""
        return self.model_copy(update={"checksum": zlib.crc32(self.model_dump_json(exclude={"checksum"}).encode())})


class SideWriter:
    """Appends sentences to the two files of one side."""

    def __init__(self, folder: Path, name: Literal["source", "target"], ids: IdType) -> None:
        self._names: list[FileName] = (
            ["source.ids", "source.ends"] if name == "source" else ["target.ids", "target.ends"]
        )
        self._paths = [folder / file for file in self._names]
        self._types = [np.dtype(ids), _ENDS]
        self._files: list[BinaryIO] = []
        self._sums = [0, 0]
        self._sizes = [0, 0]
        self._end = 0

    def __enter__(self) -> "SideWriter":
        self._files = [path.open("wb") for path in self._paths]
        return self

    def add(self, sentences: ConcatenatedIds, good: NDArray[np.bool]) -> None:
        """More sentences, those of them that are good."""
        ids, lengths = sentences.ids[np.repeat(good, sentences.lengths)], sentences.lengths[good]
        ends = self._end + np.cumsum(lengths)
        for number, array in enumerate((ids, ends)):
            content = array.astype(self._types[number]).tobytes()
            self._files[number].write(content)
            self._sums[number] = zlib.crc32(content, self._sums[number])
            self._sizes[number] += len(content)
        self._end += int(lengths.sum())

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            with file:
                file.flush()
                os.fsync(file.fileno())

    def files(self) -> dict[FileName, _File]:
        """What was written: name, size and checksum."""
        written = zip(self._names, self._sizes, self._sums, strict=True)
        return {name: _File(size=size, crc32=crc32) for name, size, crc32 in written}


def write_description(
    folder: Path, key: str, ids: IdType, corpora: list[CorpusCounts], sides: list[SideWriter]
) -> None:
    """Write prepared.json, without which a folder is incomplete."""
    files = {name: file for side in sides for name, file in side.files().items()}
    description = _Description(format=FORMAT, key=key, ids=ids, corpora=tuple(corpora), files=files).sealed()
    with (folder / "prepared.json").open("w", encoding="utf-8") as file:
        file.write(description.model_dump_json())
        file.flush()
        os.fsync(file.fileno())


def open_prepared(folder: Path, key: str | None = None) -> Prepared:
    """The pairs that were written to a folder; a DataError where they are not all there, unchanged.

    key: of what the folder must hold; none: as its name says.
    """
    try:
        described = _read_description(folder, key or folder.name.partition(".")[0])
        arrays = {name: _open_array(folder, name, described) for name in FILES}
    except OSError as error:
        raise DataError(f"the prepared text in {folder} cannot be read: {error.strerror or error}") from None
    source = TokenizedSide(arrays["source.ids"], arrays["source.ends"])
    target = TokenizedSide(arrays["target.ids"], arrays["target.ends"])
    return Prepared(folder, source, target, described.corpora)


def _read_description(folder: Path, key: str) -> _Description:
    """Checked in itself and against the sizes of the files, before any of them is read."""
    path = folder / "prepared.json"
    if not path.is_file():
        raise _damaged(path, "is missing or not a file")
    if path.stat().st_size > _LARGEST_DESCRIPTION:
        raise _damaged(path, f"has {path.stat().st_size:,} bytes")
    try:
        described = _Description.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _damaged(path, f"cannot be read ({'.'.join(map(str, first['loc']))}: {first['msg']})") from None
    if described.sealed() != described:
        raise _damaged(path, "has a wrong checksum")
    if described.key != key:
        raise _damaged(path, f"is of other text (key {described.key}, expected {key})")
    pairs = sum(one.kept for one in described.corpora)
    for name in FILES:
        file = folder / name
        if not file.is_file():
            raise _damaged(file, "is missing or not a file")
        size = file.stat().st_size
        expected = pairs * _ENDS.itemsize if file.suffix == ".ends" else described.files[name].size
        if not size == expected == described.files[name].size:
            raise _damaged(file, f"has {size:,} bytes, expected {expected:,}")
    return described


def _open_array(folder: Path, name: FileName, described: _Description) -> NDArray[Any]:
    """An array, mapped from the very file that was checked."""
    path, expected = folder / name, described.files[name]
    dtype = _ENDS if path.suffix == ".ends" else np.dtype(described.ids)
    with path.open("rb") as file:
        checksum = size = 0
        while chunk := file.read(_CHUNK):
            checksum, size = zlib.crc32(chunk, checksum), size + len(chunk)
        if (size, checksum) != (expected.size, expected.crc32):
            raise _damaged(path, "has a wrong checksum")
        if size == 0:  # nothing cannot be mapped
            return np.zeros(0, dtype)
        return np.memmap(file, dtype, mode="r")


def _damaged(path: Path, found: str) -> DataError:
    return DataError(f"the prepared text in {path.parent} is damaged: {path.name} {found}")
