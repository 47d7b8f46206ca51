"""Two ways of choosing for the built-in corpus: towards a given sentence, and at random with a record."""

import random
import re
from collections.abc import Sequence
from typing import TypeVar

from heed.microworld.corpus import Example
from heed.microworld.templates import sentence

T = TypeVar("T")


class UndecidedError(Exception):
    """A derivation came to a choice that nobody has made yet."""

    def __init__(self, ways: list[int]) -> None:
        self.ways = ways


class Follow:
    """A `choose` that makes the choices it is told and stops at the next, naming those that fit the English words."""

    def __init__(self, path: tuple[int, ...], english: set[str]) -> None:
        self.path, self.english, self.made = path, english, 0

    def __call__(self, options: Sequence[T], /) -> T:
        if self.made == len(self.path):
            raise UndecidedError([index for index, option in enumerate(options) if self.fits(option)])
        self.made += 1
        return options[self.path[self.made - 1]]

    def fits(self, option: object) -> bool:
        forms = [form for name, form in getattr(option, "__dict__", {}).items() if name.startswith("english")]
        return not forms or any(form in self.english for form in forms)


def derivations(source: str) -> list[Example]:
    """Every way the grammar has to make this English sentence, found by following all choices that fit its words."""
    english = set(re.sub(r"\ban\b", "a", source.rstrip(".").replace("'s ", " the ").lower()).split())
    examples: list[Example] = []
    paths: list[tuple[int, ...]] = [()]
    while paths:
        path = paths.pop()
        try:
            example = sentence(Follow(path, english))
        except UndecidedError as choice:
            paths += [(*path, way) for way in choice.ways]
        else:
            examples += [example] * (example.source == source)
    return examples


class Record:
    """A `choose` that draws evenly and remembers what it drew and how many sentences it drew from."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.start()

    def start(self) -> None:
        self.path: list[int] = []
        self.ways = 1

    def __call__(self, options: Sequence[T], /) -> T:
        self.path.append(self.draw.randrange(len(options)))
        self.ways *= len(options)
        return options[self.path[-1]]
