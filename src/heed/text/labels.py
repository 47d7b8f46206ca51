"""Encodes a classifier's data: labels as one id each, and texts or pairs of texts as token ids.

Enters: labels; texts, where a tab separates the two texts of a pair. Leaves: one id per label; the ids of a text, with
⟨/s⟩ between the texts of a pair. Knows nothing of models.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence

from heed.errors import DataError
from heed.settings import did_you_mean
from heed.text.tokenizer import EOS, SPECIAL, Tokenizer

FIRST_LABEL_ID = len(SPECIAL)  # the ids below are the special tokens, as in every tokenizer


def too_many_labels(labels: int, texts: int) -> bool:
    """Whether there are so many distinct labels that the label and text columns are probably swapped."""
    return labels > 10_000 or (texts >= 20 and labels > texts / 2)


class LabelEncoder:
    """The class names, encoded as one id each."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._ids = {name: [FIRST_LABEL_ID + index] for index, name in enumerate(names)}

    @classmethod
    def from_names(cls, labels: Iterable[str]) -> "LabelEncoder":
        """The distinct labels in alphabetical order; empty ones are ignored."""
        names = sorted(set(labels) - {""})
        if len(names) < 2:
            raise DataError(f"a classifier needs at least two labels to choose from, found {names}")
        return cls(names)

    @classmethod
    def from_corpus(cls, labels: Iterable[str]) -> "LabelEncoder":
        """The distinct labels of a corpus; a DataError if there are so many that they are probably texts."""
        counts = Counter(labels)
        counts.pop("", None)
        if too_many_labels(len(counts), counts.total()):
            raise DataError(
                f"{len(counts):,} different labels in {counts.total():,} texts: expected the label in the first column "
                "and the text after it. --columns 2,1 swaps the columns; if there really are so many labels, list them "
                "in data.labels"
            )
        return cls.from_names(counts)

    @property
    def vocab_size(self) -> int:
        """The number of ids, special tokens included."""
        return FIRST_LABEL_ID + len(self.names)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The id of each label as a list; an empty label has no id."""
        return [self._id(text) if text else [] for text in texts]

    def _id(self, label: str) -> list[int]:
        if label not in self._ids:
            raise DataError(f"the label {label!r} is not one of the model's labels: {did_you_mean(label, self.names)}")
        return self._ids[label]

    def to_json(self) -> str:
        """The names in id order, as JSON."""
        return json.dumps(self.names)


class TextPairEncoder:
    """Encodes single texts and pairs of texts with a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.vocab_size

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text or pair, with ⟨/s⟩ between the texts of a pair; empty if one of them is."""
        pairs = [text.split("\t") for text in texts]
        encoded = iter(self._tokenizer.encode([text for pair in pairs for text in pair]))
        encoded_pairs = [[next(encoded) for _ in pair] for pair in pairs]
        return [_join_with_eos(ids) if all(ids) else [] for ids in encoded_pairs]

    def to_json(self) -> str:
        """The tokenizer's JSON, prefixed to distinguish it from the plain tokenizer in cache keys."""
        return "joined " + self._tokenizer.to_json()


def _join_with_eos(texts: Sequence[Sequence[int]]) -> list[int]:
    joined = list(texts[0])
    for ids in texts[1:]:
        joined += [EOS, *ids]
    return joined
