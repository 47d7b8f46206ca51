"""The words of the training sources and how often each follows another: what spelling correction knows of a language.

Enters: texts, as a stream. Leaves: a `Lexicon`, stored in a model folder as JSON. Words are compared in lower case;
each has the form in which it is mostly written inside a sentence, as `London` or, in German, `Hund`.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from unicodedata import category

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from heed.errors import DataError

# Vowel signs of Indian scripts, accents of decomposed text, vowels of Arabic: inside words, but \w has none of them.
_BLOCKS_WITH_MARKS = chain(range(0x300, 0x3100), range(0xA600, 0xAC00), range(0xFB00, 0xFE30), range(0x10A00, 0x11F00))
MARKS = "".join(character for character in map(chr, _BLOCKS_WITH_MARKS) if category(character)[0] == "M")
_LETTERS = rf"\w[\w{MARKS}\u200c\u200d]*"  # the last two join and separate letters inside a word
WORD = re.compile(rf"{_LETTERS}(?:['’]{_LETTERS})*")
BOUNDARY = ""  # in the place of a word: the start or the end of a text

_MAX_TEXTS = 1_000_000  # texts that are counted
_MAX_WORDS, _MAX_BIGRAMS = 200_000, 100_000  # that are stored: the most frequent
_PRUNED_AT = 2_000_000  # bigrams in memory; the rarest are then dropped, at least half
_NAMES_ONLY = 0.1  # share of capitalised words inside sentences below which these are names


@dataclass(frozen=True)
class Lexicon:
    """Word and bigram counts of texts; words are in lower case."""

    texts: int
    counts: Mapping[str, int]
    forms: Mapping[str, str]  # as a word is mostly written inside a sentence
    bigrams: Mapping[tuple[str, str], int]  # those that occur at least twice
    capitals_are_names: bool  # inside a sentence, as in English; not so in German
    share_of_new: float  # estimated share of running words of other texts that these do not contain (Good 1953)

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> "Lexicon":
        """Count the words of at most a million texts."""
        count, inside = 0, 0
        counts, bigrams, capitalised = Counter[str](), Counter[tuple[str, str]](), Counter[str]()
        for text in islice(texts, _MAX_TEXTS):
            written = WORD.findall(text)
            words = [word.lower() for word in written]
            count += 1
            counts.update(words)
            bigrams.update(pairwise((BOUNDARY, *words, BOUNDARY)))
            if len(bigrams) > _PRUNED_AT:
                bigrams = _without_rarest(bigrams, _PRUNED_AT // 2)
            inside += max(0, len(words) - 1)
            capitalised.update(form for word, form in islice(zip(words, written, strict=True), 1, None) if word != form)
        stored = dict(counts.most_common(_MAX_WORDS))
        usual = {}
        for form, times in capitalised.items():
            if times > stored.get(word := form.lower(), math.inf) / 2:  # so no other form is more frequent
                usual[word] = form
        known = stored.keys() | {BOUNDARY}
        frequent = {
            pair: times for pair, times in bigrams.most_common(_MAX_BIGRAMS) if times > 1 and known.issuperset(pair)
        }
        once = sum(times == 1 for times in stored.values())
        new = (once + counts.total() - sum(stored.values())) / max(counts.total(), 1)
        return cls(count, stored, usual, frequent, capitalised.total() < _NAMES_ONLY * inside, new)

    def form(self, word: str) -> str:
        return self.forms.get(word, word)

    def to_json(self) -> bytes:
        """The file stored in a model folder: words by frequency, bigrams as their numbers from 1, 0 for a boundary."""
        words = sorted(self.counts, key=lambda word: (-self.counts[word], word))
        numbers = {BOUNDARY: 0, **{word: number for number, word in enumerate(words, 1)}}
        content = {
            "texts": self.texts,
            "capitals_are_names": self.capitals_are_names,
            "share_of_new": self.share_of_new,
            "words": [self.form(word) for word in words],
            "counts": [self.counts[word] for word in words],
            "first": [numbers[first] for first, _ in self.bigrams],
            "second": [numbers[second] for _, second in self.bigrams],
            "times": list(self.bigrams.values()),
        }
        return (json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n").encode()

    @classmethod
    def from_json(cls, content: bytes) -> "Lexicon":
        """Parse and check what `to_json` wrote; raises a DataError."""
        try:
            stored = _StoredLexicon.model_validate_json(content)
            words = [BOUNDARY, *(word.lower() for word in stored.words)]
            pairs = [(words[first], words[second]) for first, second in zip(stored.first, stored.second, strict=True)]
            counts = dict(zip(words[1:], stored.counts, strict=True))
            bigrams = dict(zip(pairs, stored.times, strict=True))
        except ValidationError as error:
            problem = error.errors()[0]
            raise DataError(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}") from None
        except (ValueError, IndexError):
            raise DataError("words, counts and bigrams do not belong together") from None
        forms = {word: form for word, form in zip(words[1:], stored.words, strict=True) if word != form}
        return cls(stored.texts, counts, forms, bigrams, stored.capitals_are_names, stored.share_of_new)


class _StoredLexicon(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    texts: PositiveInt
    capitals_are_names: bool
    share_of_new: float = Field(ge=0, le=1)
    words: list[str]
    counts: list[PositiveInt]
    first: list[NonNegativeInt]
    second: list[NonNegativeInt]
    times: list[PositiveInt]


def _without_rarest(bigrams: Counter[tuple[str, str]], most: int) -> Counter[tuple[str, str]]:
    """Without those that occurred once, then twice, and so on, until at most so many are left."""
    while len(bigrams) > most:
        rarest = min(bigrams.values())
        bigrams = Counter({pair: times for pair, times in bigrams.items() if times > rarest})
    return bigrams
