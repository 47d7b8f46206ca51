"""Validation of untrusted `tokenizer.json` files before the `tokenizers` library parses them.

Enters: the content of a `tokenizer.json` and its tokenizer type. Leaves: the parsed and validated JSON. Hugging Face's
format has many components, some of which run any regular expression or abort the process on a malformed table. heed
writes few of them, each in one form, and refuses all others. It also refuses a vocabulary in which a token has no id,
an id has no token, or a byte has no token.
"""

from collections import Counter
from typing import Any, Literal

from heed.errors import DataError
from heed.text.imported_tokenizers import SPACE, UNKNOWN, UNMATCHABLE
from heed.untrusted import parse_json, reason, short_repr

TokenizerType = Literal["bpe", "unigram", "words", "characters", "bytes"]
AnyTokenizerType = Literal[TokenizerType, "sentencepiece", "spaced"]
SPLITS_WORDS = ("bpe", "unigram", "words")  # types whose tokens never cross the end of a word
SPECIAL = ("⟨pad⟩", "⟨s⟩", "⟨/s⟩")  # ids 0, 1 and 2

# ByteLevel maps a byte that is printable in Latin-1 to that character, and the other bytes to characters 256, 257, ...
_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))
BYTE_VALUES = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(256 + offset): byte for offset, byte in enumerate(byte for byte in range(256) if byte not in _PRINTABLE)
}

_LARGEST_SCORE = 1e9  # absolute log-probability of a piece: sums of scores must stay finite
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_CHARACTER = {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": False}
# As ByteLevel splits words, but combining marks, and the joiners between letters, do not end them.
WORDS_WITH_MARKS = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}\p{M}\x{200C}\x{200D}]+| ?\p{N}+|"
    r" ?[^\s\p{L}\p{M}\p{N}\x{200C}\x{200D}]+|\s+(?!\S)|\s+"
)
_WORD = {"type": "Split", "pattern": {"Regex": WORDS_WITH_MARKS}, "behavior": "Isolated", "invert": False}
WITH_MARKS: dict[str, Any] = {"type": "Sequence", "pretokenizers": [_WORD, {**_BYTE_LEVEL, "use_regex": False}]}
_CHARACTERS = {"type": "Sequence", "pretokenizers": [_CHARACTER, {**_BYTE_LEVEL, "use_regex": False}]}
_METASPACE = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": False}
_SINGLE_SPACES = [
    {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    {"type": "Replace", "pattern": {"Regex": "^ +| +$"}, "content": ""},
]
_BPE = {
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
}


def parse_tokenizer_json(text: str | bytes, kind: AnyTokenizerType) -> dict[str, Any]:
    """Parse a `tokenizer.json` that heed or one of its importers wrote; any other content is a DataError."""
    try:
        parts = parse_json(text)
    except ValueError as error:
        raise DataError(f"this is not a tokenizer: {reason(error)}") from None
    if not isinstance(parts, dict):
        raise DataError(f"this is not a tokenizer: expected a JSON object, found {short_repr(parts)}")
    expected = _expected_components(kind)
    for name in (*expected, "model"):
        if name not in parts:
            raise DataError(f"this is not a tokenizer: it has no {name!r}")
    if kind in SPLITS_WORDS and _same(parts["pre_tokenizer"], WITH_MARKS):
        expected["pre_tokenizer"] = WITH_MARKS
    for name, value in parts.items():
        if name == "normalizer" and kind == "sentencepiece":
            _check_normalizer(value)
        elif name != "model" and (name not in expected or not _same(value, expected[name])):
            raise _unexpected(name, expected.get(name, "no such component"), value)
    _check_model(parts["model"], kind)
    return parts


def _expected_components(kind: AnyTokenizerType) -> dict[str, Any]:
    """The components that heed writes, except the model and SentencePiece's normalizer."""
    unused = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor"))
    parts: dict[str, Any] = {"version": "1.0", "added_tokens": [], **unused}
    match kind:
        case "sentencepiece":
            return {**parts, "pre_tokenizer": _METASPACE, "decoder": _METASPACE}
        case "spaced":
            return {**parts, "pre_tokenizer": {"type": "WhitespaceSplit"}, "decoder": None}
        case _:
            pre_tokenizer = _CHARACTERS if kind == "characters" else _BYTE_LEVEL
            return {**parts, "pre_tokenizer": pre_tokenizer, "decoder": {**_BYTE_LEVEL, "add_prefix_space": True}}


def _same(value: Any, expected: Any) -> bool:
    """Whether two JSON values are equal in type and value: unlike in Python, true is not 1."""
    if isinstance(value, dict) and isinstance(expected, dict):
        return value.keys() == expected.keys() and all(_same(value[name], expected[name]) for name in value)
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(_same, value, expected))
    return type(value) is type(expected) and bool(value == expected)


def _check_normalizer(value: Any) -> None:
    match value:
        case {"type": "Sequence", "normalizers": [*steps]} if len(value) == 2:
            match steps:
                case [{"type": "Precompiled", "precompiled_charsmap": str()}, *rest] if len(steps[0]) == 2:
                    steps = rest
            if _same(steps, _SINGLE_SPACES):
                return
    raise _unexpected("normalizer", "a precompiled charsmap and the removal of extra spaces", value)


def _check_model(model: Any, kind: AnyTokenizerType) -> None:
    if not isinstance(model, dict):
        raise _unexpected("model", "an object", model)
    settings = {name: value for name, value in model.items() if name not in ("vocab", "merges", "unk_id")}
    match kind:
        case "sentencepiece":
            expected: dict[str, Any] = {"type": "Unigram", "byte_fallback": False}
            names = _tokens_of_scored_vocabulary(model)
            if type(unk_id := model.get("unk_id")) is not int or not len(SPECIAL) <= unk_id < len(names):
                raise DataError(
                    f"the tokenizer's unk_id = {short_repr(unk_id)} is not one of its {len(names):,} token ids"
                )
        case "spaced":
            expected = {"type": "WordLevel", "unk_token": UNMATCHABLE + UNKNOWN}
            names = _tokens_of_id_vocabulary(model)
        case "unigram":
            expected = {"type": "Unigram", "byte_fallback": False}
            _check_bytes(names := _tokens_of_scored_vocabulary(model))
            if model.get("unk_id") is not None:
                raise _unexpected("model.unk_id", None, model["unk_id"])
        case _:
            expected = {**_BPE, "ignore_merges": kind != "bpe"}
            _check_bytes(names := _tokens_of_id_vocabulary(model))
            _check_merges(model, kind, set(names))
    if not _same(settings, expected):
        raise _unexpected("model", expected, settings)
    prefix = UNMATCHABLE if kind in ("sentencepiece", "spaced") else ""
    for token_id, special in enumerate(SPECIAL):
        if (token := names[token_id : token_id + 1]) != [prefix + special]:
            raise DataError(f"the special token {special} must have id {token_id}, found {token}")


def _tokens_of_id_vocabulary(model: dict[str, Any]) -> list[str]:
    """The tokens of a {token: id} vocabulary in id order."""
    vocabulary = model.get("vocab")
    if not isinstance(vocabulary, dict) or not all(type(token_id) is int for token_id in vocabulary.values()):
        raise _unexpected("model.vocab", "an object of tokens and their ids", vocabulary)
    names = sorted(vocabulary, key=vocabulary.__getitem__)
    if [vocabulary[name] for name in names] != list(range(len(names))):
        raise DataError(
            f"the tokenizer's {len(names):,} tokens must have the ids 0 to {len(names) - 1:,}, each exactly once"
        )
    return names


def _tokens_of_scored_vocabulary(model: dict[str, Any]) -> list[str]:
    """The tokens of a [[token, score], ...] vocabulary in id order."""
    vocabulary = model.get("vocab")
    names = []
    for entry in vocabulary if isinstance(vocabulary, list) else [vocabulary]:
        match entry:
            case [str(name), float(score) | int(score)] if name and abs(score) < _LARGEST_SCORE:
                names.append(name)
            case _:
                raise _unexpected("model.vocab", "a token and its score", entry)
    if len(set(names)) < len(names):
        ((duplicate, _),) = Counter(names).most_common(1)
        raise DataError(f"the tokenizer has the token {short_repr(duplicate)} twice")
    return names


def _check_bytes(names: list[str]) -> None:
    """Raise unless every byte has a token, so that any text can be encoded, and every token is made of bytes."""
    tokens = set(names)
    if missing := [byte for symbol, byte in BYTE_VALUES.items() if symbol not in tokens]:
        raise DataError(f"the tokenizer has no token for {len(missing)} of the 256 bytes, the first is {missing[0]}")
    for name in names[len(SPECIAL) :]:
        if not name or not BYTE_VALUES.keys() >= set(name):
            raise DataError(f"the token {short_repr(name)} has characters that represent no byte")


def _check_merges(model: dict[str, Any], kind: AnyTokenizerType, names: set[str]) -> None:
    merges = model.get("merges")
    if not isinstance(merges, list) or (merges and kind != "bpe"):
        raise _unexpected("model.merges", "pairs of tokens" if kind == "bpe" else [], merges)
    seen = set()
    for merge in merges:
        match merge:
            case [str(left), str(right)] if {left, right, left + right} <= names and (left, right) not in seen:
                seen.add((left, right))
            case _:
                raise _unexpected("model.merges", "distinct pairs of tokens whose concatenation is a token", merge)


def _unexpected(name: str, expected: object, value: object) -> DataError:
    shown = expected if isinstance(expected, str) else short_repr(expected)
    return DataError(f"unsupported tokenizer: expected {name} = {shown}, found {short_repr(value)}")
