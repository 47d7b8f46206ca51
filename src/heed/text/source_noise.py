"""Misspells training sources at random, reproducibly, so that a model translates misspelt text, too.

Enters: sentences as ids without special tokens, and a key for each. Leaves: the same sentences, half of them with some
letters deleted, doubled, replaced or swapped, in new ids. The result is a pure function of the sentence and its key.
Knows nothing of epochs, batches or torch.
"""

import random
from collections.abc import Sequence

from heed.text.tokenizer import Tokenizer

_UNCHANGED = 0.5  # share of the sentences, so that clean text stays the most frequent


class SourceNoise:
    """Misspells a share of the letters of half of the sentences."""

    def __init__(self, tokenizer: Tokenizer, rate: float) -> None:
        """rate: the share of the letters that is misspelt in a sentence that is not left unchanged."""
        self._tokenizer, self._rate = tokenizer, rate

    def __call__(self, sentences: Sequence[Sequence[int]], keys: Sequence[str]) -> list[list[int]]:
        """The sentences with their noise; keys: one random key for each."""
        result = [list(ids) for ids in sentences]
        draws = [random.Random(key) for key in keys]  # noqa: S311 - no secrets
        noisy = [index for index, draw in enumerate(draws) if draw.random() >= _UNCHANGED]
        texts = self._tokenizer.decode([sentences[index] for index in noisy])
        misspelt = [misspell(text, self._rate, draws[index]) for index, text in zip(noisy, texts, strict=True)]
        for index, ids in zip(noisy, self._tokenizer.encode(misspelt), strict=True):
            result[index] = ids or result[index]
        return result


def misspell(text: str, rate: float, draw: random.Random) -> str:
    """Delete, double, replace or swap with its successor each letter with probability `rate`."""
    letters = list(text)
    alphabet = sorted({letter for letter in text.lower() if letter.isalpha()})
    for index, letter in enumerate(text):
        if not letter.isalpha() or draw.random() >= rate:
            continue
        match draw.choice(("delete", "double", "replace", "swap")):
            case "delete":
                letters[index] = ""
            case "double":
                letters[index] *= 2
            case "replace":
                letters[index] = draw.choice(alphabet)
            case _ if index + 1 < len(letters):
                letters[index], letters[index + 1] = letters[index + 1], letters[index]
    return "".join(letters)
