"""The two kinds of tokenizer that heed uses but does not train: SentencePiece's, and words of pre-tokenised text.

Enters: the checked parts of a `tokenizer.json` that an importer of `heed.interop` made. Leaves: ids and text as they
are in the system that the model was trained with. Unlike heed's own kinds, these have an unknown token, and
SentencePiece normalises text (NFKC, single spaces): not every text comes back exactly. In a SentencePiece vocabulary

    ids 0, 1, 2      are the special tokens, as everywhere
    3 … unk_id - 1   are the model's other tokens. A name that begins with a space is never found in text, where spaces
                     become ▁: a token that only the other side's SentencePiece makes, or a language code: >>fra<<
    unk_id           is the last token of the model
    unk_id + 1 …     are pieces that SentencePiece makes but the model does not have: unknown to the model
"""

import base64
import re
from collections.abc import Iterator, Sequence
from typing import Any

from tokenizers import Tokenizer as Backend

from heed.errors import DataError

SPACE = "▁"
UNMATCHABLE = " "  # begins the name of a token that is never found in text
UNKNOWN = "⟨unk⟩"
_CODE = re.compile(r">>.*?<<", re.DOTALL)


class SentencePiece:
    """A SentencePiece Unigram model with the normalisation before it (kind "sentencepiece")."""

    def __init__(self, parts: dict[str, Any], backend: Backend, special: int) -> None:
        """special: how many ids, from 0 on, are no part of a text."""
        self._backend, self._special = backend, special
        charsmaps = [step["precompiled_charsmap"] for step in _normalisers(parts) if step["type"] == "Precompiled"]
        self._normalise = CharacterMap(base64.b64decode(charsmaps[0])) if charsmaps else str
        # The file's own normaliser is not used: tokenizers' version drops a mark that follows certain characters (ⓞ and
        # ̆ ); ours does what SentencePiece does, and the spaces too.
        self.unk_id = int(parts["model"]["unk_id"])
        names = [str(name) for name, _ in parts["model"]["vocab"][: self.unk_id + 1]]
        if len(names) <= self.unk_id or names[self.unk_id] != UNMATCHABLE + UNKNOWN:
            raise DataError(f"the last token of a sentencepiece vocabulary must be {UNKNOWN}, found {names[-1:]}")
        self.names = [name.removeprefix(UNMATCHABLE) for name in names]
        self._ids = {name: special + place for place, name in enumerate(self.names[special:-1])}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text. A language code at the very beginning, such as >>fra<<, is a token of its own."""
        codes = [code[0] if (code := _CODE.match(text)) else "" for text in texts]
        rest = [self.normalised(text.removeprefix(code)) for code, text in zip(codes, texts, strict=True)]
        encoded = self._backend.encode_batch(rest)
        # By name and not by number: what is unknown to SentencePiece comes as it is written, and the model may know it.
        return [
            [self._ids.get(piece, self.unk_id) for piece in ([code] if code else []) + encoding.tokens]
            for code, encoding in zip(codes, encoded, strict=True)
        ]

    def normalised(self, text: str) -> str:
        """Normal characters, single spaces, and one before the text; each space shown as ▁."""
        words = re.sub(" +", " ", self._normalise(text)).strip(" ").replace(" ", SPACE)
        return (SPACE + words).rstrip(SPACE)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a sequence of ids."""
        return b"".join(self.pieces(ids)).decode(errors="replace").strip()

    def pieces(self, ids: Sequence[int]) -> list[bytes]:
        """What each token stands for; special tokens and the unknown one for nothing."""
        stands = (self.names[token] if self._special <= token < self.unk_id else "" for token in ids)
        return [name.replace(SPACE, " ").encode(errors="replace") for name in stands]


class CharacterMap:
    """SentencePiece's table of normal characters: the longest entry that text goes on with is replaced.

    The table is a trie of UTF-8 bytes in one array of 32-bit units ("double array"), and behind it the replacements,
    each ended by a zero byte; a leaf holds the place of its replacement.
    """

    def __init__(self, table: bytes) -> None:
        size = int.from_bytes(table[:4], "little")
        self._units = memoryview(table[4 : 4 + size]).cast("I")
        self._replacements = table[4 + size :]

    def __call__(self, text: str) -> str:
        """The text with every entry of the table replaced."""
        return b"".join(self._parts(text.encode(errors="replace"))).decode(errors="replace")

    def _parts(self, data: bytes) -> Iterator[bytes]:
        here = 0
        while here < len(data):
            length, place = self._longest(data, here)
            if length:
                yield self._replacements[place : self._replacements.index(0, place)]
            else:
                length = 1
                while here + length < len(data) and data[here + length] & 0xC0 == 0x80:  # the rest of a character
                    length += 1
                yield data[here : here + length]
            here += length

    def _longest(self, data: bytes, start: int) -> tuple[int, int]:
        """How many bytes from here on the longest entry has, and where its replacement is; (0, 0): there is none."""
        units, longest = self._units, (0, 0)
        node = _children(units[0])
        for end in range(start, len(data)):
            node ^= data[end]
            unit = units[node]
            if unit & 0x8000_00FF != data[end]:
                break
            node ^= _children(unit)
            if unit >> 8 & 1:
                longest = end + 1 - start, units[node] & 0x7FFF_FFFF
        return longest


def _children(unit: int) -> int:
    return unit >> 10 << ((unit & 0x200) >> 6)


def _normalisers(parts: dict[str, Any]) -> list[dict[str, Any]]:
    normaliser = parts["normalizer"]
    if normaliser is None:
        return []
    return list(normaliser.get("normalizers", [normaliser]))


class Pretokenized:
    """A list of words, for text whose words are separated by white space already (kind "spaced")."""

    def __init__(self, parts: dict[str, Any], special: int) -> None:
        """special: how many ids, from 0 on, are no part of a text."""
        self._ids: dict[str, int] = parts["model"]["vocab"]
        self._special = special
        self.unk_id = len(self._ids) - 1
        self._names = sorted(self._ids, key=lambda name: self._ids[name])
        if self._ids.get(UNMATCHABLE + UNKNOWN) != self.unk_id:
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
