"""Pairs of texts to token ids on disk, written once; see prepared.py for what a folder holds.

Enters: corpora, what encodes each side, and the longest length. Leaves: a folder of arrays, keyed by the content of the
text and everything that shaped it, so that the same work is never done twice and changed text is never mistaken for
old. Text streams through in pieces: memory does not grow with the corpus.

Several processes may prepare the same text at once: the first to finish gives its folder the name, and all use that
one. A folder that is found damaged is left alone, since somebody may have it open; another is written beside it.
Knows nothing of torch or batches.
"""

import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from heed.errors import DataError
from heed.text.corpus import Corpus, Pair, read_pairs
from heed.text.prepared import FORMAT, CorpusCounts, IdType, Prepared, SideWriter, open_prepared, write_description
from heed.text.sentence_split import SentenceCounter
from heed.text.tokenizer import Tokenizer
from heed.text.word_cache import ConcatenatedIds, Int64Array, WordCache, concatenate_ids

_PIECE = 10_000  # pairs encoded at a time: enough to keep all cores busy, a few megabytes of memory
_PIECE_CHARACTERS = 2_000_000  # at most, where texts are long

_COPIES = 100  # of one text, all of them damaged, before somebody should have a look
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)  # another process had the name first
_BUILDING = ".building-"
_ABANDONED = 3600  # seconds without a write

PairProgress = Callable[[int], None]


@runtime_checkable
class TextEncoder(Protocol):
    """Encodes texts as ids; a `Tokenizer` is one."""

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""

    def to_json(self) -> str:
        """Everything that decides which ids a text gets."""


@dataclass(frozen=True)
class Encoders:
    """The encoders of both sides. source: none where there is no source. cut: longer texts are split into pieces."""

    source: TextEncoder | None
    target: TextEncoder
    chunk_long_texts: bool = False

    def present(self) -> list[TextEncoder]:
        """The encoders of the sides that exist."""
        return [encoder for encoder in (self.source, self.target) if encoder is not None]


@dataclass(frozen=True)
class Survey:
    """What reading a corpus through once tells: that every line can be read, how many there are, and which."""

    pairs: int
    digest: str
    sentences: int = 1  # that a source usually has


SurveyedCorpora = list[tuple[Corpus, Survey]]


def survey(corpus: Corpus, report: PairProgress = lambda _pairs: None) -> Survey:
    """Read a corpus through: the first mistake in it is found here, before anything else is done."""
    digest, count, sentences = _Digest(), 0, SentenceCounter()
    for pair in read_pairs(corpus):
        digest.add(pair)
        sentences.add(pair.source)
        count += 1
        if count % _PIECE == 0:
            report(count)
    report(count)
    return Survey(count, digest.hex(), sentences.usual())


class _Digest:
    """A digest of pairs. Lengths come before the texts, so that no other pairs give the same bytes."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=16)

    def add(self, pair: Pair) -> None:
        self._digest.update(f"{len(pair.source)} {len(pair.target)} {pair.source}{pair.target}".encode())

    def hex(self) -> str:
        return self._digest.hexdigest()


def prepare(
    corpora: Iterable[tuple[Corpus, Survey]],
    encoders: Encoders,
    max_tokens: int,
    cache: Path,
    report: PairProgress = lambda _pairs: None,
) -> Prepared:
    """The ids of all pairs that have two sides of at most `max_tokens` tokens, from the cache if they are there."""
    corpora = list(corpora)
    key = _key(corpora, encoders, max_tokens)
    building: Path | None = None
    notes: list[str] = []
    try:
        for folder in (cache / (key if number == 0 else f"{key}.{number}") for number in range(_COPIES)):
            if not os.path.lexists(folder):
                building = building or _build(cache, key, corpora, encoders, max_tokens, report)
                if _has_renamed(building, folder):
                    return _named(open_prepared(folder), corpora, notes)
            try:
                return _named(open_prepared(folder), corpora, notes)
            except DataError as error:
                notes.append(f"{error}; prepared again, that folder can be deleted")
    except OSError as error:
        raise DataError(f"prepared text cannot be written to {cache}: {error.strerror}") from None
    finally:
        if building is not None:
            shutil.rmtree(building, ignore_errors=True)
    raise DataError(f"{cache}: {_COPIES} copies of the same prepared text, all damaged: delete {key}*; {notes[0]}")


def _has_renamed(building: Path, folder: Path) -> bool:
    """Give a folder its name, unless there is something of that name."""
    try:
        building.rename(folder)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    return True


def _named(prepared: Prepared, corpora: SurveyedCorpora, notes: list[str]) -> Prepared:
    """Prepared text with the names of today's files, since the same text may have come from others."""
    both = zip(prepared.corpora, corpora, strict=True)
    return replace(
        prepared, corpora=tuple(replace(kept, name=corpus.name) for kept, (corpus, _) in both), notes=tuple(notes)
    )


def _build(
    cache: Path,
    key: str,
    corpora: SurveyedCorpora,
    encoders: Encoders,
    max_tokens: int,
    report: PairProgress,
) -> Path:
    """A whole folder that has no name yet."""
    cache.mkdir(parents=True, exist_ok=True)
    _sweep(cache)
    building = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=cache))
    try:
        _write(building, key, corpora, encoders, max_tokens, report)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    return building


def _sweep(cache: Path) -> None:
    """Remove what was left half built by processes that were killed: whoever builds writes all the time."""
    for left in cache.glob(f"{_BUILDING}*"):
        with suppress(OSError):  # somebody else may be sweeping too
            parts = [left, *left.iterdir()] if left.is_dir() else [left]
            if time.time() - max(path.stat().st_mtime for path in parts) > _ABANDONED:
                shutil.rmtree(left) if left.is_dir() else left.unlink()


def _key(corpora: SurveyedCorpora, encoders: Encoders, max_tokens: int) -> str:
    parts = [FORMAT, max_tokens, encoders.chunk_long_texts, *(encoder.to_json() for encoder in encoders.present())]
    parts += [[corpus.weight, surveyed.pairs, surveyed.digest] for corpus, surveyed in corpora]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def _write(
    folder: Path,
    key: str,
    corpora: SurveyedCorpora,
    encoders: Encoders,
    max_tokens: int,
    report: PairProgress,
) -> None:
    done, kept = 0, []
    largest = max(encoder.vocab_size for encoder in encoders.present())
    ids: IdType = "<u2" if largest <= 2**16 else "<u4"
    encode = _Encode(encoders, max_tokens)
    with SideWriter(folder, "source", ids) as source, SideWriter(folder, "target", ids) as target:
        for corpus, surveyed in corpora:
            empty = too_long = good_ones = read = 0
            digest = _Digest()
            for pairs in _pieces(read_pairs(corpus)):
                for pair in pairs:
                    digest.add(pair)
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
            # A part of a corpus (hold_out.py) has no digest of its own: there the number of pairs must do.
            if read != surveyed.pairs or (corpus.subset is None and digest.hex() != surveyed.digest):
                raise DataError(f"{corpus.name} was changed while it was being prepared: start again")
            done += read
            kept.append(CorpusCounts(corpus.name, corpus.weight, good_ones, empty, too_long, max_tokens))
    write_description(folder, key, ids, kept, [source, target])


class _Encode:
    """Pairs to the ids of both sides; a source that nobody encodes is empty."""

    def __init__(self, encoders: Encoders, max_tokens: int) -> None:
        self._encoders, self._max_tokens = encoders, max_tokens
        self._sources = self._targets = _whole_or_by_words(encoders.target)
        if encoders.source is not None and encoders.source is not encoders.target:
            self._sources = _whole_or_by_words(encoders.source)

    def __call__(self, pairs: list[Pair], name: str) -> tuple[ConcatenatedIds, ConcatenatedIds]:
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
        if self._encoders.chunk_long_texts:
            targets = ConcatenatedIds(targets.ids, _cut(targets.lengths, self._max_tokens))
        return ConcatenatedIds(targets.ids[:0], np.zeros_like(targets.lengths)), targets


def _whole_or_by_words(encoder: TextEncoder) -> Callable[[Sequence[str]], ConcatenatedIds]:
    if isinstance(encoder, Tokenizer) and encoder.encodes_words_independently:
        return WordCache(encoder.encode)
    return lambda texts: concatenate_ids(encoder.encode(texts))


def _cut(lengths: Int64Array, longest: int) -> Int64Array:
    """The lengths of the pieces of texts; an empty text is an empty piece."""
    pieces = np.maximum(-(-lengths // longest), 1)
    cut = np.full(pieces.sum(), longest)
    cut[np.cumsum(pieces) - 1] = lengths - (pieces - 1) * longest
    return cut


def _pieces(pairs: Iterator[Pair]) -> Iterator[list[Pair]]:
    """Some pairs at a time, fewer where they are long."""
    piece: list[Pair] = []
    characters = 0
    for pair in pairs:
        piece.append(pair)
        characters += len(pair.source) + len(pair.target)
        if len(piece) >= _PIECE or characters >= _PIECE_CHARACTERS:
            yield piece
            piece, characters = [], 0
    if piece:
        yield piece
