"""The tokenizers of a corpus, trained once and cached.

Enters: corpora that have been read through, and settings. Leaves: the source's tokenizer and the target's, one and the
same unless they are to be separate; from the cache if they were trained on the same text and settings before.

Training takes memory for every distinct word: the `tokenizers` library needs about 115 bytes for each of its bytes. A
text without spaces is made of long words that hardly ever occur twice. So the text is sampled until its distinct words
fit, and a note says how much of it was used.
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

from heed.config import DataConfig
from heed.errors import DataError
from heed.text.corpus import read_pairs
from heed.text.prepare import SurveyedCorpora
from heed.text.tokenizer import Tokenizer, suitable_vocab_size

FORMAT = 2
_PAIRS = 1_000_000  # a sample has at most that many pairs, for time,
_DISTINCT_BYTES = 8_000_000  # and its different words at most that many bytes of UTF-8, for memory: about 1 GB
_TEXT = 2**18  # characters of one text in a sample, so that a few huge texts cannot be all of it
_SPREAD = 0x9E3779B1  # 2**32 / golden ratio: multiples of it spread evenly, whatever period the text has


class TrainedTokenizers(NamedTuple):
    """The tokenizers of source and target, and messages for the user about them."""

    source: Tokenizer
    target: Tokenizer
    notes: list[str]


@dataclass(frozen=True)
class Sample:
    """One in `every` pairs, as evenly spread as can be, and how many of all characters that is."""

    every: int
    used: int
    total: int

    def __str__(self) -> str:
        pairs = "all pairs" if self.every == 1 else f"one in {self.every:,} pairs"
        return f"{self.used:,} of {self.total:,} characters, {pairs}"


def train_or_load_tokenizers(
    corpora: SurveyedCorpora,
    data: DataConfig,
    text: tuple[str, ...],
    cache: Path,
    announce: Callable[[], None],
) -> TrainedTokenizers:
    """Train the tokenizers of source and target, or read them from the cache.

    text: the sides of a pair that are text. announce: called if there is something to train, which takes a while.
    """
    sides = [(side,) for side in text] if data.separate_vocabularies else [text]
    size = data.vocab_size or suitable_vocab_size(sum(survey.pairs for _, survey in corpora))
    trained, notes = [], []
    for names in sides:
        kept = cache / f"{_key(corpora, data, size, names)}.tokenizer.json"
        try:
            tokenizer, note = _load(kept, data)
        except DataError as error:
            if os.path.lexists(kept):
                notes.append(f"{kept} {error}: the vocabulary is trained again")
            announce()
            sample = take_sample(corpora, names)
            tokenizer = Tokenizer.train(_texts(corpora, names, sample.every), data.tokenizer, size)
            note = "" if sample.used == sample.total else f"vocabulary trained on a sample of the text: {sample}"
            notes += _keep(kept, tokenizer, note)
        trained.append(tokenizer)
        notes += [note] if note else []
    return TrainedTokenizers(trained[0], trained[-1], notes)


def take_sample(corpora: SurveyedCorpora, sides: tuple[str, ...]) -> Sample:
    """As many pairs as training has time and memory for."""
    every = -(-sum(survey.pairs for _, survey in corpora) // _PAIRS)
    while (sample := _measure(corpora, sides, every)) is None:
        every *= 2
    return sample


def _measure(corpora: SurveyedCorpora, sides: tuple[str, ...], every: int) -> Sample | None:
    """One in `every` pairs; none: their different words are too many. The first pair, always in it, is not."""
    used = total = distinct = 0
    words: set[str] = set()
    for number, text in _numbered(corpora, sides):
        total += len(text)
        if _is_chosen(number, every):
            chosen = text[:_TEXT]
            used += len(chosen)
            # The tokenizer's words are parts of these, so theirs cannot be more bytes.
            if new := set(chosen.split(" ")) - words:
                words |= new
                distinct += len("".join(new).encode())
                if distinct > _DISTINCT_BYTES:
                    return None
    return Sample(every, used, total)


def _texts(corpora: SurveyedCorpora, sides: tuple[str, ...], every: int) -> Iterator[str]:
    return (text[:_TEXT] for number, text in _numbered(corpora, sides) if _is_chosen(number, every))


def _numbered(corpora: SurveyedCorpora, sides: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """All texts, each with the number of its pair."""
    number = 0
    for corpus, _ in corpora:
        for pair in read_pairs(corpus):
            for side in sides:
                yield number, getattr(pair, side)
            number += 1


def _is_chosen(number: int, every: int) -> bool:
    return number * _SPREAD % 2**32 * every < 2**32


def _key(corpora: SurveyedCorpora, data: DataConfig, size: int, sides: tuple[str, ...]) -> str:
    parts = [FORMAT, data.tokenizer, size, sides, [[survey.pairs, survey.digest] for _, survey in corpora]]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def _load(path: Path, data: DataConfig) -> tuple[Tokenizer, str]:
    """The tokenizer that was kept and the note that belongs to it; a DataError if it is not there or damaged."""
    if not path.is_file():  # a named pipe would be waited for
        raise DataError("is no file")
    try:
        kept = json.loads(path.read_bytes())
        text, note, checksum = kept["tokenizer"], kept["note"], kept["checksum"]
        if zlib.crc32(f"{note}{text}".encode()) != checksum:
            raise DataError("is damaged (its checksum is wrong)")
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise DataError(f"is damaged ({type(error).__name__}: {error})") from None
    return Tokenizer.from_json(text, data.tokenizer), note


def _keep(path: Path, tokenizer: Tokenizer, note: str) -> list[str]:
    """Whole or not at all, also when two runs train the same at the same time; a note where it cannot be kept."""
    text = tokenizer.to_json()
    kept = {"checksum": zlib.crc32(f"{note}{text}".encode()), "note": note, "tokenizer": text}
    new: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".building-", delete=False) as file:
            new = Path(file.name)
            json.dump(kept, file)
        new.replace(path)
    except OSError as error:
        if new is not None:
            with suppress(OSError):
                new.unlink()
        return [f"the vocabulary could not be kept for another time: {path}: {error.strerror}"]
    return []
