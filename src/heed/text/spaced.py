"""Text that is cut already, with a space between tokens: what fairseq's models read and write.

Enters: a `tokenizer.json` whose model is a list of words; `heed.interop` makes one. Leaves: an id for each word between
spaces, and words with a space between. A word that is not in the list is unknown, and is not brought back.
The first ids are special tokens and the last is the unknown word; their names begin with a space, so no word is one.
"""

import re
from collections.abc import Sequence
from typing import Any

from heed.errors import DataError
from heed.text.sentencepiece import HIDDEN, UNKNOWN


class Spaced:
    """A list of words."""

    def __init__(self, parts: dict[str, Any], special: int) -> None:
        """special: how many ids, from 0 on, are no part of a text."""
        self._ids: dict[str, int] = parts["model"]["vocab"]
        self._special = special
        self.unk_id = len(self._ids) - 1
        self._names = sorted(self._ids, key=lambda name: self._ids[name])
        if self._ids.get(HIDDEN + UNKNOWN) != self.unk_id:
            raise DataError(f"the last of a list of words must be {UNKNOWN}, found {self._names[-1:]}")

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""
        return [[self._ids.get(word, self.unk_id) for word in re.split(r"\s+", text) if word] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a sequence of ids."""
        return b"".join(self.pieces(ids)).decode().removeprefix(" ")

    def pieces(self, ids: Sequence[int]) -> list[bytes]:
        """What each token stands for, the space before it included; special and unknown ones stand for nothing."""
        return [f" {self._names[token]}".encode() if self._special <= token < self.unk_id else b"" for token in ids]
