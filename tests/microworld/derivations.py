"""Two `choose` functions for the built-in grammar: one follows given choices, one draws and records them."""

import random
import re
from collections.abc import Sequence
from typing import TypeVar

from heed.microworld.corpus import Example
from heed.microworld.templates import sentence

T = TypeVar("T")


class UndecidedError(Exception):
    """A derivation reached a choice that is not given; ways: the options that fit."""

    def __init__(self, ways: list[int]) -> None:
        self.ways = ways


class Follow:
    """A `choose` that follows given choices and stops at the next one, with the options that fit the English words."""

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
    """Every derivation of an English sentence, found by trying all choices that fit its words."""
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
    """A uniform random `choose` that records its choices and the product of the numbers of options."""

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
