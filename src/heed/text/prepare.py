"""Pairs of texts to token ids on disk, written once and read by memory map.

Enters: corpora, what encodes each side, and the longest length. Leaves: a folder of arrays, keyed by the content of the
text and everything that shaped it, so that the same work is never done twice and changed text is never mistaken for
old. Text streams through in pieces: memory does not grow with the corpus.

    source.ids      the ids of all sentences end to end          source.ends     where each sentence ends
    target.ids      likewise                                     target.ends
    prepared.json   what was kept and left out, and the width of an id; written last

Ids are without special tokens. Knows nothing of torch or batches.
"""

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from heed.errors import DataError
from heed.text.corpus import Corpus, Pair, read_pairs
from heed.text.source_lengths import SentenceCounter
from heed.text.tokenizer import Tokenizer
from heed.text.words import EndToEnd, KnownWords, Numbers, end_to_end

FORMAT = 2
_PIECE = 10_000  # pairs encoded at a time: enough to keep all cores busy, a few megabytes of memory

_BUILDING = ".building-"
_ABANDONED = 3600  # seconds without a write

Report = Callable[[int], None]


@runtime_checkable
class Encoder(Protocol):
    """What makes ids of texts; a tokenizer does."""

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""

    def to_json(self) -> str:
        """All that decides on them."""


@dataclass(frozen=True)
class Encoders:
    """What makes ids of both sides. source: none where there is no source. cut: what is too long is cut to pieces."""

    source: Encoder | None
    target: Encoder
    cut: bool = False

    def both(self) -> list[Encoder]:
        """Those there are."""
        return [encoder for encoder in (self.source, self.target) if encoder is not None]


@dataclass(frozen=True)
class Survey:
    """What reading a corpus through once tells: that every line can be read, how many there are, and which."""

    pairs: int
    digest: str
    sentences: int = 1  # that a source usually has


@dataclass(frozen=True)
class Kept:
    """What became of the pairs of one corpus."""

    name: str
    weight: float
    kept: int
    empty: int
    too_long: int
    max_tokens: int

    def __str__(self) -> str:
        read = self.kept + self.empty + self.too_long
        left_out = f"{self.empty:,} empty, {self.too_long:,} longer than {self.max_tokens:,} tokens"
        return f"{self.name}: kept {self.kept:,} of {read:,}: {left_out}"


@dataclass(frozen=True)
class Side:
    """All sentences of one side, end to end."""

    ids: NDArray[Any]
    ends: NDArray[np.int64]

    def lengths(self) -> NDArray[np.int64]:
        """How long each sentence is."""
        return np.diff(self.ends, prepend=0)

    def __getitem__(self, number: int) -> NDArray[Any]:
        return self.ids[self.ends[number - 1] if number else 0 : self.ends[number]]


@dataclass(frozen=True)
class Prepared:
    """Pairs as ids; `corpora` says which came from where, in order."""

    folder: Path
    source: Side
    target: Side
    corpora: tuple[Kept, ...]

    def __len__(self) -> int:
        return len(self.source.ends)


def survey(corpus: Corpus, report: Report = lambda _pairs: None) -> Survey:
    """Read a corpus through: the first mistake in it is found here, before anything else is done."""
    digest, count, sentences = hashlib.blake2b(digest_size=16), 0, SentenceCounter()
    for pair in read_pairs(corpus):
        digest.update(f"{len(pair.source)} {pair.source}{pair.target}\n".encode())
        sentences.add(pair.source)
        count += 1
        if count % _PIECE == 0:
            report(count)
    report(count)
    return Survey(count, digest.hexdigest(), sentences.usual())


def prepare(
    corpora: Iterable[tuple[Corpus, Survey]],
    encoders: Encoders,
    max_tokens: int,
    cache: Path,
    report: Report = lambda _pairs: None,
) -> Prepared:
    """The ids of all pairs that have two sides of at most `max_tokens` tokens, from the cache if they are there."""
    corpora = list(corpora)
    folder = cache / _key(corpora, encoders, max_tokens)
    if not (folder / "prepared.json").exists():
        cache.mkdir(parents=True, exist_ok=True)
        _sweep(cache)
        building = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=cache))
        try:
            _write(building, corpora, encoders, max_tokens, report)
            shutil.rmtree(folder, ignore_errors=True)
            building.rename(folder)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return open_prepared(folder)


def _sweep(cache: Path) -> None:
    """Remove what was left half built by processes that were killed: whoever builds writes all the time."""
    for left in cache.glob(f"{_BUILDING}*"):
        with suppress(OSError):  # somebody else may be sweeping too
            newest = max(path.stat().st_mtime for path in (left, *left.iterdir()))
            if time.time() - newest > _ABANDONED:
                shutil.rmtree(left)


def _key(corpora: list[tuple[Corpus, Survey]], encoders: Encoders, max_tokens: int) -> str:
    what = [FORMAT, max_tokens, encoders.cut, *(encoder.to_json() for encoder in encoders.both())]
    what += [[corpus.weight, found.pairs, found.digest] for corpus, found in corpora]
    return hashlib.blake2b(json.dumps(what).encode(), digest_size=16).hexdigest()


def _write(
    folder: Path,
    corpora: list[tuple[Corpus, Survey]],
    encoders: Encoders,
    max_tokens: int,
    report: Report,
) -> None:
    done, kept = 0, []
    largest = max(encoder.vocab_size for encoder in encoders.both())
    ids = np.dtype("<u2" if largest <= 2**16 else "<u4")
    encode = _Encode(encoders, max_tokens)
    with _Writer(folder, "source", ids) as source, _Writer(folder, "target", ids) as target:
        for corpus, _ in corpora:
            empty = too_long = good_ones = read = 0
            for pairs in _pieces(read_pairs(corpus)):
                sources, targets = encode(pairs, corpus.name)
                lengths = np.stack((sources.lengths, targets.lengths))
                needed = lengths if encoders.source else lengths[1:]
                nothing, long = needed.min(0) == 0, lengths.max(0) > max_tokens
                good = ~(nothing | long)
                source.add(sources, good)
                target.add(targets, good)
                empty, too_long = empty + int(nothing.sum()), too_long + int((long & ~nothing).sum())
                good_ones, read = good_ones + int(good.sum()), read + len(pairs)
                report(done + read)
            done += read
            kept.append(Kept(corpus.name, corpus.weight, good_ones, empty, too_long, max_tokens))
    with (folder / "prepared.json").open("w", encoding="utf-8") as file:
        json.dump({"format": FORMAT, "ids": ids.str, "corpora": [asdict(one) for one in kept]}, file)
        file.flush()
        os.fsync(file.fileno())


class _Encode:
    """Pairs to the ids of both sides; a source that nobody encodes is empty."""

    def __init__(self, encoders: Encoders, max_tokens: int) -> None:
        self._encoders, self._max_tokens = encoders, max_tokens
        self._sources = self._targets = _whole_or_by_words(encoders.target)
        if encoders.source is not None and encoders.source is not encoders.target:
            self._sources = _whole_or_by_words(encoders.source)

    def __call__(self, pairs: list[Pair], name: str) -> tuple[EndToEnd, EndToEnd]:
        try:
            targets = self._targets([pair.target for pair in pairs])
        except DataError:
            for pair in pairs:  # which is it?
                try:
                    self._encoders.target.encode([pair.target])
                except DataError as error:
                    raise DataError(f"{name}:{pair.line}: {error}") from None
            raise
        if self._encoders.source is not None:
            return self._sources([pair.source for pair in pairs]), targets
        if self._encoders.cut:
            targets = EndToEnd(targets.ids, _cut(targets.lengths, self._max_tokens))
        return EndToEnd(targets.ids[:0], np.zeros_like(targets.lengths)), targets


def _whole_or_by_words(encoder: Encoder) -> Callable[[Sequence[str]], EndToEnd]:
    if isinstance(encoder, Tokenizer) and encoder.cuts_into_words:
        return KnownWords(encoder.encode)
    return lambda texts: end_to_end(encoder.encode(texts))


def _cut(lengths: Numbers, longest: int) -> Numbers:
    """The lengths of the pieces of texts; an empty text is an empty piece."""
    pieces = np.maximum(-(-lengths // longest), 1)
    cut = np.full(pieces.sum(), longest)
    cut[np.cumsum(pieces) - 1] = lengths - (pieces - 1) * longest
    return cut


def _pieces(pairs: Iterator[Pair]) -> Iterator[list[Pair]]:
    while piece := list(islice(pairs, _PIECE)):
        yield piece


class _Writer:
    """Appends sentences to the two files of one side."""

    def __init__(self, folder: Path, name: str, ids: np.dtype[Any]) -> None:
        self._paths = [folder / f"{name}.ids", folder / f"{name}.ends"]
        self._dtype = ids
        self._files: list[BinaryIO] = []
        self._end = 0

    def __enter__(self) -> "_Writer":
        self._files = [path.open("wb") for path in self._paths]
        return self

    def add(self, sentences: EndToEnd, good: NDArray[np.bool]) -> None:
        """More sentences, those of them that are good."""
        ids, lengths = sentences.ids[np.repeat(good, sentences.lengths)], sentences.lengths[good]
        ends = self._end + np.cumsum(lengths)
        self._files[0].write(ids.astype(self._dtype).tobytes())
        self._files[1].write(ends.astype("<i8").tobytes())
        self._end += int(lengths.sum())

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())
            file.close()


def open_prepared(folder: Path) -> Prepared:
    """The pairs that `prepare` has written to a folder."""
    known = json.loads((folder / "prepared.json").read_text(encoding="utf-8"))

    def side(name: str) -> Side:
        return Side(
            _map(folder / f"{name}.ids", np.dtype(known["ids"])), _map(folder / f"{name}.ends", np.dtype("<i8"))
        )

    return Prepared(folder, side("source"), side("target"), tuple(Kept(**one) for one in known["corpora"]))


def _map(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    if path.stat().st_size == 0:  # nothing cannot be mapped
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, mode="r")
