"""Trains the tokenizers of a corpus, or loads them from the cache.

Enters: surveyed corpora (prepare.py) and settings. Leaves: the source and the target tokenizer, which are one object
unless the settings ask for two vocabularies. The cache is keyed by text and settings.

Training needs memory for every distinct word: the `tokenizers` library takes about 115 bytes for each of its bytes.
Text without spaces consists of long words that hardly ever occur twice. So training uses a sample of the pairs whose
distinct words fit into memory, and a note reports the sample's size.
"""

import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from heed.config import DataConfig, TokenizerName
from heed.errors import DataError
from heed.text.corpus import read_pairs
from heed.text.corpus_defaults import choose_vocab_size
from heed.text.prepare import SurveyedCorpora
from heed.text.tokenizer import Tokenizer

FORMAT = 2
_MAX_PAIRS = 1_000_000  # in a sample: bounds the training time
_MAX_DISTINCT_BYTES = 8_000_000  # UTF-8 bytes of a sample's distinct words: bounds the memory to about 1 GB
_MAX_CHARACTERS = 2**18  # per text in a sample, so that a few huge texts cannot fill it
_SIZED = ("bpe", "unigram", "words")  # tokenizers that fill the vocabulary size they are given
_GOLDEN = 0x9E3779B1  # 2**32 / golden ratio: its multiples are evenly spread, whatever period the corpus has


class TrainedTokenizers(NamedTuple):
    """The tokenizers of source and target, and messages for the user about them."""

    source: Tokenizer
    target: Tokenizer
    notes: list[str]


@dataclass(frozen=True)
class Sample:
    """One in `every` pairs, evenly spread over the corpora, with the characters used and in total."""

    every: int
    used: int
    total: int

    def __str__(self) -> str:
        pairs = "all pairs" if self.every == 1 else f"one in {self.every:,} pairs"
        return f"{self.used:,} of {self.total:,} characters, {pairs}"


def train_or_load_tokenizers(
    corpora: SurveyedCorpora,
    data: DataConfig,
    text_sides: tuple[str, ...],
    cache: Path,
    on_train: Callable[[], None],
) -> TrainedTokenizers:
    """Train the tokenizers of source and target, or read them from the cache.

    text_sides: the sides of a pair that are text, not labels. on_train: called before a tokenizer is trained, which
    takes a while.
    """
    types = dict(zip(("source", "target"), data.tokenizer_types, strict=True))
    groups = (
        [((side,), types[side]) for side in text_sides] if data.has_two_vocabularies else [(text_sides, data.tokenizer)]
    )
    size, trained, notes = data.vocab_size, [], []
    if size is None:
        choice = choose_vocab_size(sum(survey.pairs for _, survey in corpora))
        size = int(choice.value)
        notes += [str(choice)] if any(kind in _SIZED for _, kind in groups) else []
    for sides, kind in groups:
        path = cache / f"{_key(corpora, kind, size, sides)}.tokenizer.json"
        try:
            tokenizer, note = _load(path, kind)
        except DataError as error:
            if os.path.lexists(path):
                notes.append(f"{path} {error}: the tokenizer is trained again")
            on_train()
            sample = choose_sample(corpora, sides)
            tokenizer = Tokenizer.train(_sampled_texts(corpora, sides, sample.every), kind, size)
            note = "" if sample.used == sample.total else f"tokenizer trained on a sample of the text: {sample}"
            notes += _save(path, tokenizer, note)
        trained.append(tokenizer)
        notes += [note] if note else []
    return TrainedTokenizers(trained[0], trained[-1], notes)


def choose_sample(corpora: SurveyedCorpora, sides: tuple[str, ...]) -> Sample:
    """The largest sample that fits the limits on time and memory."""
    every = -(-sum(survey.pairs for _, survey in corpora) // _MAX_PAIRS)
    while (sample := _measure(corpora, sides, every)) is None:
        every *= 2
    return sample


def _measure(corpora: SurveyedCorpora, sides: tuple[str, ...], every: int) -> Sample | None:
    """The sample of one in `every` pairs; None if it has too many distinct words. A single pair never has."""
    used = total = distinct = 0
    words: set[str] = set()
    for pair_index, text in _indexed_texts(corpora, sides):
        total += len(text)
        if _is_sampled(pair_index, every):
            chosen = text[:_MAX_CHARACTERS]
            used += len(chosen)
            # The pre-tokenizer splits at least at spaces, so its distinct words have no more bytes than these.
            if new := set(chosen.split(" ")) - words:
                words |= new
                distinct += len("".join(new).encode())
                if distinct > _MAX_DISTINCT_BYTES:
                    return None
    return Sample(every, used, total)


def _sampled_texts(corpora: SurveyedCorpora, sides: tuple[str, ...], every: int) -> Iterator[str]:
    return (
        text[:_MAX_CHARACTERS] for pair_index, text in _indexed_texts(corpora, sides) if _is_sampled(pair_index, every)
    )


def _indexed_texts(corpora: SurveyedCorpora, sides: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """All texts, each with the index of its pair."""
    pair_index = 0
    for corpus, _ in corpora:
        for pair in read_pairs(corpus):
            for side in sides:
                yield pair_index, getattr(pair, side)
            pair_index += 1


def _is_sampled(pair_index: int, every: int) -> bool:
    return pair_index * _GOLDEN % 2**32 * every < 2**32


def _key(corpora: SurveyedCorpora, kind: TokenizerName, size: int, sides: tuple[str, ...]) -> str:
    parts = [FORMAT, kind, size, sides, [[survey.pairs, survey.digest] for _, survey in corpora]]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def _load(path: Path, kind: TokenizerName) -> tuple[Tokenizer, str]:
    """The cached tokenizer and its note; a DataError if there is none or it is damaged."""
    if not path.is_file():  # opening a named pipe would block
        raise DataError("is not a regular file")
    try:
        saved = json.loads(path.read_bytes())
        text, note, checksum = saved["tokenizer"], saved["note"], saved["checksum"]
        if zlib.crc32(f"{note}{text}".encode()) != checksum:
            raise DataError("is damaged (wrong checksum)")
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise DataError(f"is damaged ({type(error).__name__}: {error})") from None
    return Tokenizer.from_json(text, kind), note


def _save(path: Path, tokenizer: Tokenizer, note: str) -> list[str]:
    """Write a tokenizer to the cache atomically; returns a note if that fails."""
    text = tokenizer.to_json()
    content = {"checksum": zlib.crc32(f"{note}{text}".encode()), "note": note, "tokenizer": text}
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".building-", delete=False) as file:
            temporary = Path(file.name)
            json.dump(content, file)
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()
        return [f"the tokenizer could not be cached: {path}: {error.strerror}"]
    return []
