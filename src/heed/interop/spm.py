"""Converts SentencePiece model files to heed's tokenizers and back, without SentencePiece.

Enters: a `.spm` or `.model` file and the names of a model's tokens in the order of heed's ids. Leaves: a `Tokenizer`
of type sentencepiece; or the other way round. The file is a protocol buffer, of which heed reads these fields:

    1  pieces            1 piece   2 score   3 type
    2  trainer_spec      3 model_type   24 treat_whitespace_as_suffix
    3  normalizer_spec   2 precompiled_charsmap   3 add_dummy_prefix   4 remove_extra_whitespaces   5 escape_whitespaces
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
_UNSUPPORTED_TYPES = {4: "user-defined", 6: "byte"}
_MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


@dataclass(frozen=True)
class SpmModel:
    """The parts of a SentencePiece model that decide how it segments text."""

    pieces: dict[str, float]  # normal pieces and their scores
    charsmap: bytes  # normalisation table; empty: text is not normalised


def read_spm(path: Path) -> SpmModel:
    """Read a SentencePiece model; one that heed cannot reproduce exactly is refused."""
    try:
        return _parse_model(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except (ValueError, IndexError, KeyError, struct.error, TypeError, AttributeError):
        raise DataError(f"{path} is not a SentencePiece model") from None
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _parse_model(content: bytes) -> SpmModel:
    pieces: dict[str, float] = {}
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for number, value in _fields(content):
        if number == 1:
            piece = dict(_fields(value))
            if (piece_type := piece.get(3, _NORMAL)) in _UNSUPPORTED_TYPES:
                unsupported = _UNSUPPORTED_TYPES[piece_type]
                raise DataError(f"its piece {piece[1]!r} is {unsupported}, which heed does not support")
            if piece_type == _NORMAL:
                pieces[piece[1].decode()] = float(piece.get(2, 0.0))
        elif number == 2:
            trainer = dict(_fields(value))
        elif number == 3:
            normalizer = dict(_fields(value))
    if not pieces:
        raise ValueError
    if (model_type := trainer.get(3, 1)) != 1:
        raise DataError(
            f"it is a {_MODEL_TYPES.get(model_type, model_type)} model, but heed supports unigram models only"
        )
    if trainer.get(24) or not all(normalizer.get(field, 1) for field in (3, 4, 5)):
        raise DataError("it does not treat spaces as SentencePiece does by default, which heed does not support")
    return SpmModel(pieces, bytes(normalizer.get(2, b"")))


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protocol buffer message, by number: an integer, a float or bytes."""
    offset = 0

    def varint() -> int:
        nonlocal offset
        value = shift = 0
        while True:
            byte = data[offset]
            offset, value, shift = offset + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while offset < len(data):
        number, wire_type = divmod(varint(), 8)
        if wire_type == 0:
            yield number, varint()
            continue
        length = {1: 8, 2: 0, 5: 4}[wire_type] or varint()
        content, offset = data[offset : offset + length], offset + length
        if len(content) < length:
            raise ValueError
        yield number, struct.unpack("<f", content)[0] if wire_type == 5 else content


def to_spm(tokenizer: Tokenizer) -> tuple[bytes, list[str]]:
    """A tokenizer of type sentencepiece as a SentencePiece model file, and the token string of every id."""
    parts = json.loads(tokenizer.to_json())
    vocabulary = parts["model"]["vocab"]
    pieces = [_message(1, b"<unk>", 3, _UNKNOWN), _message(1, b"<s>", 3, _CONTROL), _message(1, b"</s>", 3, _CONTROL)]
    pieces += [_message(1, name.encode(), 2, score) for name, score in vocabulary if not name.startswith(UNMATCHABLE)]
    normalizers_json = parts["normalizer"]["normalizers"]
    tables = [part["precompiled_charsmap"] for part in normalizers_json if part["type"] == "Precompiled"]
    name = b"nmt_nfkc" if tables else b"identity"
    table = base64.b64decode(tables[0]) if tables else b""
    fields = [part for piece in pieces for part in (1, piece)]
    names = [str(name).removeprefix(UNMATCHABLE) for name, _ in vocabulary[: tokenizer.vocab_size]]
    return _message(*fields, 2, _message(3, 1), 3, _message(1, name, 2, table)), names


def _message(*fields: "int | float | bytes") -> bytes:
    """A protocol buffer message of fields: number, value, number, value …"""
    message = b""
    for number, value in zip(fields[::2], fields[1::2], strict=True):
        if isinstance(value, float):
            message += _varint(int(number) << 3 | 5) + struct.pack("<f", value)
        elif isinstance(value, int):
            message += _varint(int(number) << 3) + _varint(value)
        else:
            message += _varint(int(number) << 3 | 2) + _varint(len(value)) + value
    return message


def _varint(value: int) -> bytes:
    encoded = b""
    while value > 127:
        encoded, value = encoded + bytes([value & 127 | 128]), value >> 7
    return encoded + bytes([value])


def tokenizer_from_spm(spm: SpmModel, names: Sequence[str]) -> Tokenizer:
    """A tokenizer that segments as SentencePiece does. names: tokens in id order, without special and unknown."""
    vocabulary = [(UNMATCHABLE + name, 0.0) for name in SPECIAL]
    vocabulary += [(name, spm.pieces[name]) if name in spm.pieces else (UNMATCHABLE + name, 0.0) for name in names]
    vocabulary.append((UNMATCHABLE + UNKNOWN, 0.0))
    unk_id, model_tokens = len(vocabulary) - 1, set(names)
    vocabulary += [(name, score) for name, score in spm.pieces.items() if name not in model_tokens]
    backend = Backend(models.Unigram(vocabulary, unk_id, byte_fallback=False))
    charsmap: list[normalizers.Normalizer] = [normalizers.Precompiled(spm.charsmap)] if spm.charsmap else []
    single_spaces = [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex("^ +| +$"), "")]
    backend.normalizer = normalizers.Sequence([*charsmap, *single_spaces])
    spaces: dict[str, Any] = {"replacement": SPACE, "prepend_scheme": "always", "split": False}
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(**spaces), decoders.Metaspace(**spaces)
    return Tokenizer.from_json(backend.to_str(), "sentencepiece")
