"""Tokenizers of imported models, used but never trained by heed: SentencePiece, and word lists.

Enters: the validated content of a `tokenizer.json` that an importer of `heed.interop` wrote. Leaves: the same ids and
text as in the toolkit that trained the model. Unlike the types that heed trains, these have an unknown token, and
SentencePiece normalises text (NFKC, single spaces), so decoding does not restore every text. The ids of a SentencePiece
vocabulary:

    0, 1, 2          the special tokens, as in every tokenizer
    3 … unk_id - 1   the model's other tokens. A name that begins with a space never matches text, where spaces become
                     ▁: a piece of the other side's SentencePiece model only, or a language code such as >>fra<<
    unk_id           the unknown token, the model's last
    unk_id + 1 …     pieces that SentencePiece produces but the model's vocabulary lacks: mapped to unk_id
"""

import base64
import re
from collections.abc import Iterator, Sequence
from typing import Any

from tokenizers import Tokenizer as HFTokenizer

from heed.errors import DataError

SPACE = "▁"
UNMATCHABLE = " "  # prefix of the names of tokens that never match text
UNKNOWN = "⟨unk⟩"
_LANGUAGE_CODE = re.compile(r">>.*?<<", re.DOTALL)


class SentencePiece:
    """A SentencePiece unigram model and its normalisation (tokenizer type "sentencepiece")."""

    def __init__(self, parts: dict[str, Any], hf_tokenizer: HFTokenizer, special: int) -> None:
        """special: the number of special tokens, which have the ids from 0 on."""
        self._hf_tokenizer, self._special = hf_tokenizer, special
        charsmaps = [step["precompiled_charsmap"] for step in _normalisers(parts) if step["type"] == "Precompiled"]
        self._normalise = CharacterMap(base64.b64decode(charsmaps[0])) if charsmaps else str
        # `tokenizers` would drop a combining mark after certain characters (ⓞ and ̆ ), so normalisation is ours: it
        # does what SentencePiece does, spaces included.
        self.unk_id = int(parts["model"]["unk_id"])
        names = [str(name) for name, _ in parts["model"]["vocab"][: self.unk_id + 1]]
        if len(names) <= self.unk_id or names[self.unk_id] != UNMATCHABLE + UNKNOWN:
            raise DataError(f"the last token of a sentencepiece vocabulary must be {UNKNOWN}, found {names[-1:]}")
        self.names = [name.removeprefix(UNMATCHABLE) for name in names]
        self._ids = {name: special + index for index, name in enumerate(self.names[special:-1])}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text; a language code at its start, such as >>fra<<, is one token."""
        codes = [code[0] if (code := _LANGUAGE_CODE.match(text)) else "" for text in texts]
        normalised = [self.normalise(text.removeprefix(code)) for code, text in zip(codes, texts, strict=True)]
        encoded = self._hf_tokenizer.encode_batch(normalised)
        # By name, not by SentencePiece's id: text that is unknown to SentencePiece may be a token of the model.
        return [
            [self._ids.get(piece, self.unk_id) for piece in ([code] if code else []) + encoding.tokens]
            for code, encoding in zip(codes, encoded, strict=True)
        ]

    def normalise(self, text: str) -> str:
        """Apply the character map, collapse spaces, prepend one, and write each space as ▁."""
        normalised = re.sub(" +", " ", self._normalise(text)).strip(" ").replace(" ", SPACE)
        return (SPACE + normalised).rstrip(SPACE)

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self.pieces(ids)).decode(errors="replace").strip()

    def pieces(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of each token; special tokens and the unknown token have none."""
        names = (self.names[token] if self._special <= token < self.unk_id else "" for token in ids)
        return [name.replace(SPACE, " ").encode(errors="replace") for name in names]


class CharacterMap:
    """SentencePiece's precompiled charsmap: replaces the longest matching entry at each position of a text.

    The table is a double-array trie of UTF-8 bytes (32-bit units), followed by the replacements, each terminated by a
    zero byte; a leaf holds the offset of its replacement.
    """

    def __init__(self, table: bytes) -> None:
        size = int.from_bytes(table[:4], "little")
        self._units = memoryview(table[4 : 4 + size]).cast("I")
        self._replacements = table[4 + size :]

    def __call__(self, text: str) -> str:
        return b"".join(self._replaced(text.encode(errors="replace"))).decode(errors="replace")

    def _replaced(self, data: bytes) -> Iterator[bytes]:
        start = 0
        while start < len(data):
            length, offset = self._longest_match(data, start)
            if length:
                yield self._replacements[offset : self._replacements.index(0, offset)]
            else:
                length = 1
                while start + length < len(data) and data[start + length] & 0xC0 == 0x80:  # UTF-8 continuation bytes
                    length += 1
                yield data[start : start + length]
            start += length

    def _longest_match(self, data: bytes, start: int) -> tuple[int, int]:
        """The length in bytes of the longest entry that matches at `start`, and its replacement's offset, or zeros."""
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
    """A word list for pre-tokenised text, whose tokens are separated by white space (tokenizer type "spaced")."""

    def __init__(self, parts: dict[str, Any], special: int) -> None:
        """special: the number of special tokens, which have the ids from 0 on."""
        self._ids: dict[str, int] = parts["model"]["vocab"]
        self._special = special
        self.unk_id = len(self._ids) - 1
        self._names = sorted(self._ids, key=lambda name: self._ids[name])
        if self._ids.get(UNMATCHABLE + UNKNOWN) != self.unk_id:
            raise DataError(f"the last token of a word list must be {UNKNOWN}, found {self._names[-1:]}")

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self._ids.get(word, self.unk_id) for word in re.split(r"\s+", text) if word] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self.pieces(ids)).decode().removeprefix(" ")

    def pieces(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of each token, a leading space included; special tokens and the unknown token have none."""
        return [f" {self._names[token]}".encode() if self._special <= token < self.unk_id else b"" for token in ids]
