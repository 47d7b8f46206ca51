"""Converts SentencePiece model files to heed's tokenizers and back, without SentencePiece.

Enters: a `.spm` or `.model` file and the names of a model's tokens in the order of heed's ids. Leaves: a `Tokenizer`
of kind sentencepiece; or the other way round. The file is a protocol buffer, of which these fields decide:

    1  pieces            1 the piece   2 its score   3 its type
    2  trainer_spec      3 the kind of model   24 whether ▁ ends a word   35 whether bytes stand for unknown characters
    3  normalizer_spec   2 the table of normal characters   3, 4, 5 what is done with spaces
"""

import base64
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from heed.errors import DataError
from heed.text.imported_tokenizers import SPACE, UNKNOWN, UNMATCHABLE
from heed.text.tokenizer import SPECIAL, Tokenizer

_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3
_TYPES = {4: "user-defined", 6: "byte"}
_MODELS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


@dataclass(frozen=True)
class SpmModel:
    """The parts of a SentencePiece model that decide how it segments text."""

    pieces: dict[str, float]  # those that occur in text, with their scores
    charsmap: bytes  # the table of normal characters; empty: text stays as it is


def read_spm(path: Path) -> SpmModel:
    """Read a SentencePiece model; one that heed cannot follow exactly is refused."""
    try:
        return _model(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except (ValueError, IndexError, KeyError, struct.error, TypeError, AttributeError):
        raise DataError(f"{path} is not a SentencePiece model") from None
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _model(content: bytes) -> SpmModel:
    pieces: dict[str, float] = {}
    trainer: dict[int, Any] = {}
    normaliser: dict[int, Any] = {}
    for number, value in _fields(content):
        if number == 1:
            piece = dict(_fields(value))
            if (kind := piece.get(3, _NORMAL)) in _TYPES:
                raise DataError(f"its piece {piece[1]!r} is {_TYPES[kind]}, which heed does not support")
            if kind == _NORMAL:
                pieces[piece[1].decode()] = float(piece.get(2, 0.0))
        elif number == 2:
            trainer = dict(_fields(value))
        elif number == 3:
            normaliser = dict(_fields(value))
    if not pieces:
        raise ValueError
    if (kind := trainer.get(3, 1)) != 1:
        raise DataError(f"it is a {_MODELS.get(kind, kind)} model, but heed supports unigram models only")
    if trainer.get(24) or not all(normaliser.get(field, 1) for field in (3, 4, 5)):
        raise DataError("it does not treat spaces as SentencePiece does by default, which heed does not support")
    return SpmModel(pieces, bytes(normaliser.get(2, b"")))


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protocol buffer message, by number: a whole number, a float or bytes."""
    here = 0

    def varint() -> int:
        nonlocal here
        value = shift = 0
        while True:
            byte = data[here]
            here, value, shift = here + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while here < len(data):
        number, wire = divmod(varint(), 8)
        if wire == 0:
            yield number, varint()
            continue
        length = {1: 8, 2: 0, 5: 4}[wire] or varint()
        content, here = data[here : here + length], here + length
        if len(content) < length:
            raise ValueError
        yield number, struct.unpack("<f", content)[0] if wire == 5 else content


def to_spm(tokenizer: Tokenizer) -> tuple[bytes, list[str]]:
    """A tokenizer of kind sentencepiece as a SentencePiece model file, and the names of all its ids."""
    parts = json.loads(tokenizer.to_json())
    vocabulary = parts["model"]["vocab"]
    pieces = [_message(1, b"<unk>", 3, _UNKNOWN), _message(1, b"<s>", 3, _CONTROL), _message(1, b"</s>", 3, _CONTROL)]
    pieces += [_message(1, name.encode(), 2, score) for name, score in vocabulary if not name.startswith(UNMATCHABLE)]
    tables = [one["precompiled_charsmap"] for one in parts["normalizer"]["normalizers"] if one["type"] == "Precompiled"]
    name = b"nmt_nfkc" if tables else b"identity"
    table = base64.b64decode(tables[0]) if tables else b""
    fields = [part for piece in pieces for part in (1, piece)]
    names = [str(name).removeprefix(UNMATCHABLE) for name, _ in vocabulary[: tokenizer.vocab_size]]
    return _message(*fields, 2, _message(3, 1), 3, _message(1, name, 2, table)), names


def _message(*fields: "int | float | bytes") -> bytes:
    """A protocol buffer message of fields: number, value, number, value …"""
    written = b""
    for number, value in zip(fields[::2], fields[1::2], strict=True):
        if isinstance(value, float):
            written += _varint(int(number) << 3 | 5) + struct.pack("<f", value)
        elif isinstance(value, int):
            written += _varint(int(number) << 3) + _varint(value)
        else:
            written += _varint(int(number) << 3 | 2) + _varint(len(value)) + value
    return written


def _varint(value: int) -> bytes:
    written = b""
    while value > 127:
        written, value = written + bytes([value & 127 | 128]), value >> 7
    return written + bytes([value])


def tokenizer_from_spm(spm: SpmModel, names: Sequence[str]) -> Tokenizer:
    """A tokenizer that cuts as SentencePiece does. names: of all tokens but the special ones and the unknown one."""
    vocabulary = [(UNMATCHABLE + name, 0.0) for name in SPECIAL]
    vocabulary += [(name, spm.pieces[name]) if name in spm.pieces else (UNMATCHABLE + name, 0.0) for name in names]
    vocabulary.append((UNMATCHABLE + UNKNOWN, 0.0))
    unk_id, known = len(vocabulary) - 1, set(names)
    vocabulary += [(name, score) for name, score in spm.pieces.items() if name not in known]
    backend = Backend(models.Unigram(vocabulary, unk_id, byte_fallback=False))
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(spm.charsmap)] if spm.charsmap else []
    single = [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex("^ +| +$"), "")]
    backend.normalizer = normalizers.Sequence([*steps, *single])
    spaces: dict[str, Any] = {"replacement": SPACE, "prepend_scheme": "always", "split": False}
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(**spaces), decoders.Metaspace(**spaces)
    return Tokenizer.from_json(backend.to_str(), "sentencepiece")
