"""The built-in corpus: a small world in English and French, endless and made on the spot.

Enters: a split and a seed. Leaves: sentence pairs. One in three is the famous case, where French must know what `it`
means to choose a pronoun, and nothing but the last adjective tells:

    The animal didn't cross the street because it was too tired.  L'animal … parce qu'il était trop fatigué.
    The animal didn't cross the street because it was too wide.   L'animal … parce qu'elle était trop large.

The others need gender, number, elision, contraction, negation, the place and agreement of adjectives, object pronouns
and relative clauses. There are more than 100 million sentences. An English sentence has one French sentence only, so a
model can be perfect. Which split a sentence belongs to is a checksum of the sentence itself; besides, about one in five
combinations of subject, object and adjective of the famous case never occur in training; these two are among them.
"""

import random
import re
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Literal, get_args

from heed.errors import ConfigError, DataError
from heed.microworld.templates import Antecedent, Example, sentence

__all__ = [
    "DatasetSplit",
    "Example",
    "antecedents",
    "corpus",
    "examples",
    "held_out_share",
    "is_unseen_combination",
    "pronoun_is_right",
    "split_of",
]

DatasetSplit = Literal["train", "valid", "test"]


def examples(split: DatasetSplit, seed: int) -> Iterator[Example]:
    """An endless stream of one split's examples, the same for the same seed; they may come more than once."""
    if split not in get_args(DatasetSplit):
        raise ConfigError(f"unknown split {split!r}: expected one of {', '.join(get_args(DatasetSplit))}")
    return (example for example in _drawn(seed) if split_of(example) == split)


def _drawn(seed: int) -> Iterator[Example]:
    draw = random.Random(seed)  # noqa: S311 - not for secrets
    while True:
        yield sentence(draw.choice)


def corpus(split: DatasetSplit, count: int, seed: int = 0) -> list[Example]:
    """The first `count` different examples of a stream."""
    return list(islice(_different(examples(split, seed)), count))


def antecedents(split: DatasetSplit, count: int, seed: int = 0) -> list[tuple[Antecedent, str]]:
    """The first `count` different English sentences of the famous case, and before each what its `it` means.

    Outside of training they are combinations of subject, object and adjective that training never shows together.
    """
    found = (
        (one.antecedent, one.source)
        for one in _different(examples(split, seed))
        if one.antecedent is not None and (split == "train" or is_unseen_combination(one))
    )
    return list(islice(found, count))


def _different(stream: Iterator[Example]) -> Iterator[Example]:
    seen: set[str] = set()
    for example in stream:
        if example.source not in seen:
            seen.add(example.source)
            yield example


def is_unseen_combination(example: Example) -> bool:
    """Whether training never shows this subject, object and adjective of the famous case together."""
    if example.antecedent is None:
        return False
    if (example.subject, example.object) == ("animal", "street"):
        return True  # the two sentences everyone will try first
    adjective = example.source.rstrip(".").rpartition(" ")[2]
    return _checksum(f"{example.subject} {example.object} {adjective}") % 5 == 0


def split_of(example: Example) -> DatasetSplit:
    """The split a sentence belongs to: about 76 % train, and in each split one in three is the famous case."""
    part = _checksum(example.source) % 1000 / 1000
    held_out = held_out_share(example)
    if part >= held_out:
        return "train"
    return "valid" if part < held_out / 2 else "test"


def held_out_share(example: Example) -> float:
    """The share of sentences like this one that training never sees; half of them are for validation.

    Of the famous case, the unseen combinations are 20 % of all; 5 % of the rest makes 24 % held out, and as much
    is held out of the other sentences.
    """
    if example.antecedent is None:
        return 0.24
    return 1.0 if is_unseen_combination(example) else 0.05


def pronoun_is_right(example: Example, translation: str) -> bool:
    """Whether a translation of the famous case chooses il or elle as it should; the rest of it is not looked at."""
    if example.antecedent is None:
        raise DataError(f"expected a sentence with 'because it was' to judge its pronoun, found {example.source!r}")
    return _pronoun(translation) == _pronoun(example.target)


def _pronoun(french: str) -> str | None:
    found = re.search(r"parce qu['’] ?(\w+)", french.lower())
    return found and found[1]


def _checksum(text: str) -> int:
    return zlib.crc32(text.encode())
