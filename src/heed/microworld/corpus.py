"""Generates the built-in English-French corpus: an endless stream of sentence pairs, split by checksum.

Enters: a split and a seed. Leaves: sentence pairs. One in three is a pronoun sentence: the gender of the French pronoun
depends on the antecedent of `it`, which only the last adjective reveals:

    The animal didn't cross the street because it was too tired.  L'animal … parce qu'il était trop fatigué.
    The animal didn't cross the street because it was too wide.   L'animal … parce qu'elle était trop large.

The others need gender, number, elision, contraction, negation, the position and agreement of adjectives, object
pronouns and relative clauses. There are more than 100 million sentences. Each English sentence has exactly one
translation, so a model can reach 100 % accuracy. A checksum of the English sentence determines its split. In addition,
about one in five combinations of subject, object and adjective in pronoun sentences never occur in training, the two
above among them.
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
    """An endless stream of examples of one split, determined by the seed; examples may repeat."""
    if split not in get_args(DatasetSplit):
        raise ConfigError(f"unknown split {split!r}: expected one of {', '.join(get_args(DatasetSplit))}")
    return (example for example in _random_examples(seed) if split_of(example) == split)


def _random_examples(seed: int) -> Iterator[Example]:
    draw = random.Random(seed)  # noqa: S311 - not for secrets
    while True:
        yield sentence(draw.choice)


def corpus(split: DatasetSplit, count: int, seed: int = 0) -> list[Example]:
    """The first `count` distinct examples of the stream `examples(split, seed)`."""
    return list(islice(_distinct(examples(split, seed)), count))


def antecedents(split: DatasetSplit, count: int, seed: int = 0) -> list[tuple[Antecedent, str]]:
    """The first `count` distinct English pronoun sentences, each after the antecedent of its `it`.

    Those of the held-out splits are combinations of subject, object and adjective that never occur in training.
    """
    sentences = (
        (example.antecedent, example.source)
        for example in _distinct(examples(split, seed))
        if example.antecedent is not None and (split == "train" or is_unseen_combination(example))
    )
    return list(islice(sentences, count))


def _distinct(stream: Iterator[Example]) -> Iterator[Example]:
    seen: set[str] = set()
    for example in stream:
        if example.source not in seen:
            seen.add(example.source)
            yield example


def is_unseen_combination(example: Example) -> bool:
    """Whether the subject, object and adjective of a pronoun sentence never occur together in training."""
    if example.antecedent is None:
        return False
    if (example.subject, example.object) == ("animal", "street"):
        return True  # the two example sentences of the module docstring
    adjective = example.source.rstrip(".").rpartition(" ")[2]
    return _checksum(f"{example.subject} {example.object} {adjective}") % 5 == 0


def split_of(example: Example) -> DatasetSplit:
    """The split of a sentence: about 76 % are train; one in three of each split is a pronoun sentence."""
    fraction = _checksum(example.source) % 1000 / 1000
    held_out = held_out_share(example)
    if fraction >= held_out:
        return "train"
    return "valid" if fraction < held_out / 2 else "test"


def held_out_share(example: Example) -> float:
    """The share of sentences like this one that is held out of training, half for validation and half for test.

    Unseen combinations are 20 % of the pronoun sentences; with 5 % of the rest, 24 % are held out. Of all other
    sentences 24 % are held out too.
    """
    if example.antecedent is None:
        return 0.24
    return 1.0 if is_unseen_combination(example) else 0.05


def pronoun_is_right(example: Example, translation: str) -> bool:
    """Whether a translation of a pronoun sentence has the right pronoun, il or elle; only the pronoun is compared."""
    if example.antecedent is None:
        raise DataError(f"expected a sentence with 'because it was' to judge its pronoun, found {example.source!r}")
    return _pronoun(translation) == _pronoun(example.target)


def _pronoun(french: str) -> str | None:
    match = re.search(r"parce qu['’] ?(\w+)", french.lower())
    return match and match[1]


def _checksum(text: str) -> int:
    return zlib.crc32(text.encode())
