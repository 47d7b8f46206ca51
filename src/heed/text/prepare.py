"""Tokenises corpora and writes the token ids to a cache on disk, keyed by content.

Enters: corpora, an encoder for each side, and a maximum length. Leaves: a folder of arrays (prepared.py), keyed by a
hash of the text and of everything that determines the ids, so that the same text is tokenised once and changed text is
tokenised anew. Text is processed in chunks: memory does not grow with the corpus.

Several processes may prepare the same text at once: each writes a temporary folder, the first to finish renames it, and
all use that folder. A damaged folder is left alone, since another process may have it open; a new one is written beside
it. Knows nothing of torch or batches.
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
from heed.text.text_statistics import TextSampler, TextStatistics, combined
from heed.text.tokenizer import Tokenizer
from heed.text.word_cache import ConcatenatedIds, Int64Array, WordCache, concatenate_ids

_CHUNK_PAIRS = 10_000  # pairs encoded at a time: enough to keep all cores busy, a few megabytes of memory
_CHUNK_CHARACTERS = 2_000_000  # at most, where texts are long

_MAX_COPIES = 100  # damaged copies of the same text before giving up
_NAME_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)  # another process was first to rename its folder
_BUILDING = ".building-"
_ABANDONED = 3600  # seconds since the last write after which a temporary folder is removed

PairProgress = Callable[[int], None]


@runtime_checkable
class TextEncoder(Protocol):
    """Encodes texts as ids: a `Tokenizer`, a `LabelEncoder` or a `TextPairEncoder`."""

    @property
    def vocab_size(self) -> int: ...

    def encode(self, texts: Sequence[str]) -> list[list[int]]: ...

    def to_json(self) -> str:
        """Everything that determines the ids of a text, for cache keys."""


@dataclass(frozen=True)
class Encoders:
    """The encoders of both sides; source: None for monolingual text."""

    source: TextEncoder | None
    target: TextEncoder
    chunk_long_texts: bool = False  # split texts longer than the limit instead of leaving them out

    def present(self) -> list[TextEncoder]:
        return [encoder for encoder in (self.source, self.target) if encoder is not None]


@dataclass(frozen=True)
class Survey:
    """The result of reading a corpus once: every line is valid; the number of pairs and a digest of their text."""

    pairs: int
    digest: str
    sides: tuple[TextStatistics, TextStatistics]  # source and target
    sentences: int = 1  # per source line, 95th percentile


SurveyedCorpora = list[tuple[Corpus, Survey]]


def both_sides(surveyed: SurveyedCorpora) -> list[TextStatistics]:
    """The statistics of all sources and of all targets."""
    return [combined([survey.sides[side] for _, survey in surveyed]) for side in (0, 1)]


def survey(corpus: Corpus, report: PairProgress = lambda _pairs: None) -> Survey:
    """Read a whole corpus once, so that an invalid line raises a DataError before any other work is done."""
    digest, count, sentences = _Digest(), 0, SentenceCounter()
    source, target = TextSampler(), TextSampler()
    for pair in read_pairs(corpus):
        digest.add(pair)
        sentences.add(pair.source)
        source.add(pair.source)
        target.add(pair.target)
        count += 1
        if count % _CHUNK_PAIRS == 0:
            report(count)
    report(count)
    return Survey(count, digest.hex(), (source.statistics(), target.statistics()), sentences.percentile_95())


class _Digest:
    """A hash of pairs; lengths are hashed before the texts, so that pair boundaries count."""

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
    """Load or write the ids of all pairs whose sides are not empty and have at most `max_tokens` tokens."""
    corpora = list(corpora)
    key = _key(corpora, encoders, max_tokens)
    building: Path | None = None
    notes: list[str] = []
    try:
        for folder in (cache / (key if copy == 0 else f"{key}.{copy}") for copy in range(_MAX_COPIES)):
            if not os.path.lexists(folder):
                building = building or _build(cache, key, corpora, encoders, max_tokens, report)
                if _rename_unless_taken(building, folder):
                    return _with_names(open_prepared(folder), corpora, notes)
            try:
                return _with_names(open_prepared(folder), corpora, notes)
            except DataError as error:
                notes.append(f"{error}; prepared again, that folder can be deleted")
    except OSError as error:
        raise DataError(f"the prepared text cannot be written to {cache}: {error.strerror}") from None
    finally:
        if building is not None:
            shutil.rmtree(building, ignore_errors=True)
    raise DataError(f"{cache}: {_MAX_COPIES} damaged copies of the same prepared text: delete {key}*; {notes[0]}")


def _rename_unless_taken(building: Path, folder: Path) -> bool:
    try:
        building.rename(folder)
    except OSError as error:
        if error.errno in _NAME_TAKEN:
            return False
        raise
    return True


def _with_names(prepared: Prepared, corpora: SurveyedCorpora, notes: list[str]) -> Prepared:
    """Replace the cached corpus names, since files of other names may have the same text."""
    pairs = zip(prepared.corpora, corpora, strict=True)
    renamed = tuple(replace(counts, name=corpus.name) for counts, (corpus, _) in pairs)
    return replace(prepared, corpora=renamed, notes=tuple(notes))


def _build(
    cache: Path,
    key: str,
    corpora: SurveyedCorpora,
    encoders: Encoders,
    max_tokens: int,
    report: PairProgress,
) -> Path:
    """Write a complete temporary folder."""
    cache.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(cache)
    building = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=cache))
    try:
        _write(building, key, corpora, encoders, max_tokens, report)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    return building


def _remove_abandoned(cache: Path) -> None:
    """Remove temporary folders of killed processes: a live one writes all the time."""
    for building in cache.glob(f"{_BUILDING}*"):
        with suppress(OSError):  # another process may remove it at the same time
            paths = [building, *building.iterdir()] if building.is_dir() else [building]
            if time.time() - max(path.stat().st_mtime for path in paths) > _ABANDONED:
                shutil.rmtree(building) if building.is_dir() else building.unlink()


def _key(corpora: SurveyedCorpora, encoders: Encoders, max_tokens: int) -> str:
    parts = [FORMAT, max_tokens, encoders.chunk_long_texts, *(encoder.to_json() for encoder in encoders.present())]
    parts += [[corpus.weight, survey.pairs, survey.digest] for corpus, survey in corpora]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def _write(
    folder: Path,
    key: str,
    corpora: SurveyedCorpora,
    encoders: Encoders,
    max_tokens: int,
    report: PairProgress,
) -> None:
    done, counts = 0, []
    largest = max(encoder.vocab_size for encoder in encoders.present())
    id_type: IdType = "<u2" if largest <= 2**16 else "<u4"
    encode = _PairEncoder(encoders, max_tokens)
    with SideWriter(folder, "source", id_type) as source, SideWriter(folder, "target", id_type) as target:
        for corpus, survey in corpora:
            empty = too_long = kept = read = 0
            digest = _Digest()
            for pairs in _chunks(read_pairs(corpus)):
                for pair in pairs:
                    digest.add(pair)
                sources, targets = encode(pairs, corpus.name)
                lengths = np.stack((sources.lengths, targets.lengths))
                required = lengths if encoders.source else lengths[1:]
                is_empty, is_too_long = required.min(0) == 0, lengths.max(0) > max_tokens
                keep = ~(is_empty | is_too_long)
                source.add(sources, keep)
                target.add(targets, keep)
                empty, too_long = empty + int(is_empty.sum()), too_long + int((is_too_long & ~is_empty).sum())
                kept, read = kept + int(keep.sum()), read + len(pairs)
                report(done + read)
            # A subset of a corpus (hold_out.py) has no digest of its text: only the number of pairs is checked.
            if read != survey.pairs or (corpus.subset is None and digest.hex() != survey.digest):
                raise DataError(f"{corpus.name} was changed while it was being prepared: start again")
            done += read
            counts.append(CorpusCounts(corpus.name, corpus.weight, kept, empty, too_long, max_tokens))
    write_description(folder, key, id_type, counts, [source, target])


class _PairEncoder:
    """Encodes both sides of pairs; a side without an encoder is empty."""

    def __init__(self, encoders: Encoders, max_tokens: int) -> None:
        self._encoders, self._max_tokens = encoders, max_tokens
        self._encode_sources = self._encode_targets = _concatenating_encoder(encoders.target)
        if encoders.source is not None and encoders.source is not encoders.target:
            self._encode_sources = _concatenating_encoder(encoders.source)

    def __call__(self, pairs: list[Pair], name: str) -> tuple[ConcatenatedIds, ConcatenatedIds]:
        try:
            targets = self._encode_targets([pair.target for pair in pairs])
        except DataError:
            for pair in pairs:  # find the pair to name its line
                try:
                    self._encoders.target.encode([pair.target])
                except DataError as error:
                    raise DataError(f"{name}:{pair.line}: {error}") from None
            raise
        if self._encoders.source is not None:
            return self._encode_sources([pair.source for pair in pairs]), targets
        if self._encoders.chunk_long_texts:
            targets = ConcatenatedIds(targets.ids, _chunk_lengths(targets.lengths, self._max_tokens))
        return ConcatenatedIds(targets.ids[:0], np.zeros_like(targets.lengths)), targets


def _concatenating_encoder(encoder: TextEncoder) -> Callable[[Sequence[str]], ConcatenatedIds]:
    if isinstance(encoder, Tokenizer) and encoder.encodes_words_independently:
        return WordCache(encoder.encode)
    return lambda texts: concatenate_ids(encoder.encode(texts))


def _chunk_lengths(lengths: Int64Array, max_tokens: int) -> Int64Array:
    """The lengths of all texts after each is split into chunks of `max_tokens`; an empty text is one empty chunk."""
    chunks = np.maximum(-(-lengths // max_tokens), 1)
    chunk_lengths = np.full(chunks.sum(), max_tokens)
    chunk_lengths[np.cumsum(chunks) - 1] = lengths - (chunks - 1) * max_tokens
    return chunk_lengths


def _chunks(pairs: Iterator[Pair]) -> Iterator[list[Pair]]:
    chunk: list[Pair] = []
    characters = 0
    for pair in pairs:
        chunk.append(pair)
        characters += len(pair.source) + len(pair.target)
        if len(chunk) >= _CHUNK_PAIRS or characters >= _CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk
