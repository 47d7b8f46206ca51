"""What a `tokenizer.json` may hold: a closed list, checked before the tokenizers library sees any of it.

Enters: the JSON of a tokenizer, which somebody else may have written, and its kind. Leaves: its parts, checked.
Hugging Face's format has many components, some of which run any regular expression or end the process when a table in
them is wrong. heed writes few of them, each in one form; all else is refused, and so is a vocabulary with a token that
has no id, an id that has no token or a byte that has none.
"""

from collections import Counter
from typing import Any, Literal

from heed.errors import DataError
from heed.text.imported_tokenizers import SPACE, UNKNOWN, UNMATCHABLE
from heed.untrusted import parse_json, reason, short_repr

TokenizerType = Literal["bpe", "unigram", "words", "characters", "bytes"]
AnyTokenizerType = Literal[TokenizerType, "sentencepiece", "spaced"]
SPECIAL = ("⟨pad⟩", "⟨s⟩", "⟨/s⟩")  # ids 0, 1 and 2

# ByteLevel shows a byte that is a printable character of Latin-1 as that, and the others as the characters from 256 on.
_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))
BYTE_VALUES = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(256 + place): byte for place, byte in enumerate(byte for byte in range(256) if byte not in _PRINTABLE)
}

_LARGEST_SCORE = 1e9  # of a piece, a log-probability; sums of them must stay finite
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_CHARACTER = {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": False}
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
    """The parts of a tokenizer that heed wrote, or an importer of it; anything else is refused."""
    try:
        parts = parse_json(text)
    except ValueError as error:
        raise DataError(f"this is not a tokenizer: {reason(error)}") from None
    if not isinstance(parts, dict):
        raise DataError(f"this is not a tokenizer: expected a JSON object, found {short_repr(parts)}")
    around = _around(kind)
    for name in (*around, "model"):
        if name not in parts:
            raise DataError(f"this is not a tokenizer: it has no {name!r}")
    for name, value in parts.items():
        if name == "normalizer" and kind == "sentencepiece":
            _check_normalizer(value)
        elif name != "model" and (name not in around or not _same(value, around[name])):
            raise _refused(name, around.get(name, "no such part"), value)
    _check_model(parts["model"], kind)
    return parts


def _around(kind: AnyTokenizerType) -> dict[str, Any]:
    """All parts but the model and, of sentencepiece, the normalizer."""
    nothing = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor"))
    parts: dict[str, Any] = {"version": "1.0", "added_tokens": [], **nothing}
    match kind:
        case "sentencepiece":
            return {**parts, "pre_tokenizer": _METASPACE, "decoder": _METASPACE}
        case "spaced":
            return {**parts, "pre_tokenizer": {"type": "WhitespaceSplit"}, "decoder": None}
        case _:
            words = _CHARACTERS if kind == "characters" else _BYTE_LEVEL
            return {**parts, "pre_tokenizer": words, "decoder": {**_BYTE_LEVEL, "add_prefix_space": True}}


def _same(found: Any, expected: Any) -> bool:
    """Whether a part is what heed writes; true and 1 are not the same."""
    if isinstance(found, dict) and isinstance(expected, dict):
        return found.keys() == expected.keys() and all(_same(found[name], expected[name]) for name in found)
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(_same, found, expected))
    return type(found) is type(expected) and bool(found == expected)


def _check_normalizer(value: Any) -> None:
    match value:
        case {"type": "Sequence", "normalizers": [*steps]} if len(value) == 2:
            match steps:
                case [{"type": "Precompiled", "precompiled_charsmap": str()}, *rest] if len(steps[0]) == 2:
                    steps = rest
            if _same(steps, _SINGLE_SPACES):
                return
    raise _refused("normalizer", "a table of normal characters and single spaces", value)


def _check_model(model: Any, kind: AnyTokenizerType) -> None:
    if not isinstance(model, dict):
        raise _refused("model", "an object", model)
    own = {name: value for name, value in model.items() if name not in ("vocab", "merges", "unk_id")}
    match kind:
        case "sentencepiece":
            expected: dict[str, Any] = {"type": "Unigram", "byte_fallback": False}
            names = _scored(model)
            if type(unk_id := model.get("unk_id")) is not int or not len(SPECIAL) <= unk_id < len(names):
                raise DataError(f"the tokenizer's unk_id = {short_repr(unk_id)} is none of its {len(names):,} tokens")
        case "spaced":
            expected = {"type": "WordLevel", "unk_token": UNMATCHABLE + UNKNOWN}
            names = _numbered(model)
        case "unigram":
            expected = {"type": "Unigram", "byte_fallback": False}
            _check_bytes(names := _scored(model))
            if model.get("unk_id") is not None:
                raise _refused("model.unk_id", None, model["unk_id"])
        case _:
            expected = {**_BPE, "ignore_merges": kind != "bpe"}
            _check_bytes(names := _numbered(model))
            _check_merges(model, kind, set(names))
    if not _same(own, expected):
        raise _refused("model", expected, own)
    hidden = UNMATCHABLE if kind in ("sentencepiece", "spaced") else ""
    for number, special in enumerate(SPECIAL):
        if names[number : number + 1] != [hidden + special]:
            raise DataError(f"the special token {special} must have id {number}, found {names[number : number + 1]}")


def _numbered(model: dict[str, Any]) -> list[str]:
    """The tokens of a vocabulary that numbers them, in the order of their ids."""
    vocabulary = model.get("vocab")
    if not isinstance(vocabulary, dict) or not all(type(number) is int for number in vocabulary.values()):
        raise _refused("model.vocab", "tokens and their ids", vocabulary)
    names = sorted(vocabulary, key=vocabulary.__getitem__)
    if [vocabulary[name] for name in names] != list(range(len(names))):
        raise DataError(f"the tokenizer's {len(names):,} tokens do not have the ids 0 to {len(names) - 1:,}, each once")
    return names


def _scored(model: dict[str, Any]) -> list[str]:
    """The tokens of a vocabulary that has a score for each."""
    vocabulary = model.get("vocab")
    names = []
    for entry in vocabulary if isinstance(vocabulary, list) else [vocabulary]:
        match entry:
            case [str(name), float(score) | int(score)] if name and abs(score) < _LARGEST_SCORE:
                names.append(name)
            case _:
                raise _refused("model.vocab", "a token and its score", entry)
    if len(set(names)) < len(names):
        ((twice, _),) = Counter(names).most_common(1)
        raise DataError(f"the tokenizer has the token {short_repr(twice)} twice")
    return names


def _check_bytes(names: list[str]) -> None:
    """A vocabulary of heed's own has a token for every byte, so that no text is lost, and tokens of bytes only."""
    known = set(names)
    if missing := [byte for shown, byte in BYTE_VALUES.items() if shown not in known]:
        raise DataError(f"the tokenizer has no token for {len(missing)} of the 256 bytes, the first is {missing[0]}")
    for name in names[len(SPECIAL) :]:
        if not name or not BYTE_VALUES.keys() >= set(name):
            raise DataError(f"the token {short_repr(name)} does not stand for bytes of text")


def _check_merges(model: dict[str, Any], kind: AnyTokenizerType, names: set[str]) -> None:
    merges = model.get("merges")
    if not isinstance(merges, list) or (merges and kind != "bpe"):
        raise _refused("model.merges", "pairs of tokens" if kind == "bpe" else [], merges)
    seen = set()
    for merge in merges:
        match merge:
            case [str(left), str(right)] if {left, right, left + right} <= names and (left, right) not in seen:
                seen.add((left, right))
            case _:
                raise _refused("model.merges", "each pair of tokens once, and a token that joins them", merge)


def _refused(name: str, expected: object, found: object) -> DataError:
    wanted = expected if isinstance(expected, str) else short_repr(expected)
    return DataError(f"a tokenizer of heed has {name} = {wanted}, found {short_repr(found)}")
