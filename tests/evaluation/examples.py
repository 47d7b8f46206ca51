"""References, and translations made from them by adding errors."""

import random

REFERENCES = [
    "A dog runs across the wet grass .",
    "Two men, one old and one young, sit on a bench.",
    "The animal didn't cross the street because it was too tired.",
    "A Woman in a red coat waits for 2.50 euros in change.",
    "Nobody knows where the blue bicycle has gone today.",
] * 16


def damaged(share: float, seed: int) -> list[str]:
    """The references with this share of their words removed, doubled or capitalised."""
    dice = random.Random(seed)

    def changed(word: str) -> list[str]:
        return dice.choice(([], [word, word], [word.upper()])) if dice.random() < share else [word]

    return [" ".join(part for word in text.split() for part in changed(word)) for text in REFERENCES]
