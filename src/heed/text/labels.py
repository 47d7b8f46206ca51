"""A classifier's data as ids: texts of one or two parts, and labels.

Enters: texts, of two parts as one with a tab between; labels. Leaves: the ids of a text, ⟨/s⟩ between its parts; one id
per label. Knows nothing of models.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence

from heed.errors import DataError
from heed.settings import did_you_mean
from heed.text.tokenizer import EOS, SPECIAL, Tokenizer

FIRST_LABEL_ID = len(SPECIAL)  # the id of the first label: those below it mean what they mean everywhere


def too_many_labels(labels: int, texts: int) -> bool:
    """Whether so many labels differ that the columns of label and text are probably swapped."""
    return labels > 10_000 or (texts >= 20 and labels > texts / 2)


class LabelEncoder:
    """The names of the classes; they encode to one id each."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._ids = {name: [FIRST_LABEL_ID + number] for number, name in enumerate(names)}

    @classmethod
    def from_names(cls, found: Iterable[str]) -> "LabelEncoder":
        """All of these labels, in the order of the alphabet."""
        names = sorted(set(found) - {""})
        if len(names) < 2:
            raise DataError(f"a classifier needs at least two labels to choose from, found {names}")
        return cls(names)

    @classmethod
    def from_corpus(cls, found: Iterable[str]) -> "LabelEncoder":
        """All labels of a corpus, unless they are so many that texts must have been taken for labels."""
        counts = Counter(found)
        counts.pop("", None)
        if too_many_labels(len(counts), counts.total()):
            raise DataError(
                f"{len(counts):,} different labels in {counts.total():,} texts: is the label in the first column, and "
                "the text after it? --columns 2,1 reads them the other way round; data.labels names labels if they are "
                "really so many"
            )
        return cls.from_names(counts)

    @property
    def vocab_size(self) -> int:
        """The number of ids, those of special tokens included."""
        return FIRST_LABEL_ID + len(self.names)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The id of each label; none for an empty one."""
        return [self._id(text) if text else [] for text in texts]

    def _id(self, label: str) -> list[int]:
        if label not in self._ids:
            raise DataError(f"the label {label!r} is not one of those learnt: {did_you_mean(label, self.names)}")
        return self._ids[label]

    def to_json(self) -> str:
        """The names in the order of their ids, as JSON."""
        return json.dumps(self.names)


class TextPairEncoder:
    """A tokenizer for texts of one or two parts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @property
    def vocab_size(self) -> int:
        """The vocabulary size of the tokenizer."""
        return self._tokenizer.vocab_size

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text; of two parts, the first ends before the second begins, and both must be there."""
        parts = [text.split("\t") for text in texts]
        encoded = iter(self._tokenizer.encode([part for of_text in parts for part in of_text]))
        each = [[next(encoded) for _ in of_text] for of_text in parts]
        return [_with_ends_between(ids) if all(ids) else [] for ids in each]

    def to_json(self) -> str:
        """The tokenizer's JSON after a mark that two-part texts are encoded differently."""
        return "joined " + self._tokenizer.to_json()


def _with_ends_between(parts: Sequence[Sequence[int]]) -> list[int]:
    joined = list(parts[0])
    for part in parts[1:]:
        joined += [EOS, *part]
    return joined
