"""The on-disk format of tokenised corpora: memory-mapped arrays with checksums.

    source.ids, target.ids     the ids of all sentences of one side, concatenated
    source.ends, target.ends   the end offset of each sentence of that side
    prepared.json              counts of kept and dropped pairs, the dtype of ids, sizes and checksums; written last

Once renamed to its final name, a folder is never changed or removed, so other processes can rely on it. Opening it
reads every byte once for the checksums (CRC-32, 4 GB/s on one core of an AMD EPYC). Any difference is a `DataError`.
Ids do not include special tokens. Knows nothing of text, torch or batches.
"""

import os
import zlib
from collections.abc import Sequence
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
_MANY_LEFT_OUT = 0.01  # share of pairs
_LARGEST_DESCRIPTION = 1 << 24
_ENDS = np.dtype("<i8")

IdType = Literal["<u2", "<u4"]


@dataclass(frozen=True)
class CorpusCounts:
    """How many pairs of one corpus were kept, and how many dropped for which reason."""

    name: str
    weight: float
    kept: NonNegativeInt
    empty: NonNegativeInt
    too_long: NonNegativeInt
    max_tokens: int

    def __str__(self) -> str:
        read = self.kept + self.empty + self.too_long
        dropped = f"{self.empty:,} empty, {self.too_long:,} longer than {self.max_tokens:,} tokens"
        return f"{self.name}: kept {self.kept:,} of {read:,}: {dropped}"


def left_out_warning(corpora: Sequence[CorpusCounts]) -> str:
    """A warning where so many pairs are too long that the model misses a part of the task; empty: none."""
    too_long = sum(corpus.too_long for corpus in corpora)
    total = too_long + sum(corpus.kept + corpus.empty for corpus in corpora)
    if too_long <= _MANY_LEFT_OUT * total:
        return ""
    most = "most of the training text is too long: " if too_long > total / 2 else ""
    return (
        f"{most}{too_long:,} of {total:,} pairs ({too_long / total:.1%}) have a side of more than data.max_tokens = "
        f"{corpora[0].max_tokens} tokens and are left out: the model is not trained on such texts. "
        "Raise data.max_tokens"
    )


def none_left_error(corpora: Sequence[CorpusCounts]) -> DataError:
    """The error where no pair is left to train on or to validate on."""
    remedy = ": raise data.max_tokens, or split the texts" if any(corpus.too_long for corpus in corpora) else ""
    return DataError(f"no usable pair is left: {'; '.join(map(str, corpora))}{remedy}")


@dataclass(frozen=True)
class TokenizedSide:
    """The token ids of all sentences of one side, concatenated, and their end offsets."""

    ids: NDArray[Any]
    ends: NDArray[np.int64]

    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.ends, prepend=0)

    def __getitem__(self, index: int) -> NDArray[Any]:
        return self.ids[self.ends[index - 1] if index else 0 : self.ends[index]]


@dataclass(frozen=True)
class Prepared:
    """Tokenised pairs of all corpora, in the order of `corpora`. notes: messages for the user."""

    folder: Path
    source: TokenizedSide
    target: TokenizedSide
    corpora: tuple[CorpusCounts, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.source.ends)

    @property
    def tokens(self) -> int:
        """The number of tokens on both sides."""
        return self.source.ids.size + self.target.ids.size


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    size: NonNegativeInt
    crc32: NonNegativeInt


class _Description(BaseModel):
    """The content of prepared.json. checksum: CRC-32 of all other fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    format: Literal[3]
    key: str
    ids: IdType
    corpora: tuple[CorpusCounts, ...]
    files: dict[FileName, _File] = Field(min_length=len(FILES))
    checksum: int = 0

    def with_checksum(self) -> "_Description":
        return self.model_copy(update={"checksum": zlib.crc32(self.model_dump_json(exclude={"checksum"}).encode())})


class SideWriter:
    """Appends sentences to the two files of one side."""

    def __init__(self, folder: Path, name: Literal["source", "target"], id_type: IdType) -> None:
        self._names: list[FileName] = (
            ["source.ids", "source.ends"] if name == "source" else ["target.ids", "target.ends"]
        )
        self._paths = [folder / file for file in self._names]
        self._types = [np.dtype(id_type), _ENDS]
        self._files: list[BinaryIO] = []
        self._checksums = [0, 0]
        self._sizes = [0, 0]
        self._end = 0

    def __enter__(self) -> "SideWriter":
        self._files = [path.open("wb") for path in self._paths]
        return self

    def add(self, sentences: ConcatenatedIds, keep: NDArray[np.bool]) -> None:
        """Append the sentences for which `keep` is True."""
        ids, lengths = sentences.ids[np.repeat(keep, sentences.lengths)], sentences.lengths[keep]
        ends = self._end + np.cumsum(lengths)
        for index, array in enumerate((ids, ends)):
            content = array.astype(self._types[index]).tobytes()
            self._files[index].write(content)
            self._checksums[index] = zlib.crc32(content, self._checksums[index])
            self._sizes[index] += len(content)
        self._end += int(lengths.sum())

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            with file:
                file.flush()
                os.fsync(file.fileno())

    def files(self) -> dict[FileName, _File]:
        """The size and checksum of each file written."""
        written = zip(self._names, self._sizes, self._checksums, strict=True)
        return {name: _File(size=size, crc32=crc32) for name, size, crc32 in written}


def write_description(
    folder: Path, key: str, id_type: IdType, corpora: list[CorpusCounts], sides: list[SideWriter]
) -> None:
    """Write prepared.json, which completes a folder."""
    files = {name: file for side in sides for name, file in side.files().items()}
    description = _Description(format=FORMAT, key=key, ids=id_type, corpora=tuple(corpora), files=files).with_checksum()
    with (folder / "prepared.json").open("w", encoding="utf-8") as file:
        file.write(description.model_dump_json())
        file.flush()
        os.fsync(file.fileno())


def open_prepared(folder: Path) -> Prepared:
    """Open a prepared folder, named by its cache key; a DataError if anything in it is missing or changed."""
    try:
        description = _read_description(folder)
        arrays = {name: _open_array(folder, name, description) for name in FILES}
    except OSError as error:
        raise DataError(f"the prepared text in {folder} cannot be read: {error.strerror or error}") from None
    source = TokenizedSide(arrays["source.ids"], arrays["source.ends"])
    target = TokenizedSide(arrays["target.ids"], arrays["target.ends"])
    return Prepared(folder, source, target, description.corpora)


def _read_description(folder: Path) -> _Description:
    """Read prepared.json; check it, and the sizes of the files, before any file is read."""
    path, key = folder / "prepared.json", folder.name.partition(".")[0]
    if not path.is_file():
        raise _damaged(path, "is missing or not a file")
    if path.stat().st_size > _LARGEST_DESCRIPTION:
        raise _damaged(path, f"has {path.stat().st_size:,} bytes")
    try:
        description = _Description.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _damaged(path, f"cannot be read ({'.'.join(map(str, first['loc']))}: {first['msg']})") from None
    if description.with_checksum() != description:
        raise _damaged(path, "has a wrong checksum")
    if description.key != key:
        raise _damaged(path, f"belongs to other text (key {description.key}, expected {key})")
    pairs = sum(counts.kept for counts in description.corpora)
    for name in FILES:
        file = folder / name
        if not file.is_file():
            raise _damaged(file, "is missing or not a file")
        size = file.stat().st_size
        expected = pairs * _ENDS.itemsize if file.suffix == ".ends" else description.files[name].size
        if not size == expected == description.files[name].size:
            raise _damaged(file, f"has {size:,} bytes, expected {expected:,}")
    return description


def _open_array(folder: Path, name: FileName, description: _Description) -> NDArray[Any]:
    """Check a file and memory-map it through the same file descriptor."""
    path, expected = folder / name, description.files[name]
    dtype = _ENDS if path.suffix == ".ends" else np.dtype(description.ids)
    with path.open("rb") as file:
        checksum = size = 0
        while chunk := file.read(_CHUNK):
            checksum, size = zlib.crc32(chunk, checksum), size + len(chunk)
        if (size, checksum) != (expected.size, expected.crc32):
            raise _damaged(path, "has a wrong checksum")
        if size == 0:  # an empty file cannot be mapped
            return np.zeros(0, dtype)
        return np.memmap(file, dtype, mode="r")


def _damaged(path: Path, problem: str) -> DataError:
    return DataError(f"the prepared text in {path.parent} is damaged: {path.name} {problem}")
