"""Parallel sentences of words that are translated one by one."""

import random

from heed.text.corpus import Pair

WORDS = {"dog": "Hund", "cat": "Katze", "house": "Haus", "London": "London", "red": "rot", "sees": "sieht"}


def sentences(count: int) -> list[Pair]:
    draw = random.Random(1)
    chosen = [draw.sample(sorted(WORDS), 3) for _ in range(count)]
    return [
        Pair(f"Now the {' '.join(words)}.", f"Jetzt {' '.join(WORDS[word] for word in words)} da.", 0)
        for words in chosen
    ]
