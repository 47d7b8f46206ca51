"""Reads and writes the tokenizers of a MarianMT folder.

source.spm  target.spm  vocab.json     MarianMT's own; target_vocab.json too, if the vocabularies are separate
tokenizer.json                         one of heed's, exported as a fast tokenizer of transformers;
                                       target_tokenizer.json too, if the target has its own: only heed reads it
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heed.artifacts.writing import json_bytes
from heed.config import RunConfig
from heed.errors import FolderError
from heed.interop.folders import read_json
from heed.interop.spm import read_spm, to_spm, tokenizer_from_spm
from heed.text.imported_tokenizers import UNKNOWN
from heed.text.tokenizer import EOS, SPECIAL, Tokenizer, TokenizerPair

# Keys that heed adds to an exported config.json.
TOKENIZER_TYPE, SOURCE_TOKENIZER_TYPE, LANGUAGES = "heed_tokenizer", "heed_source_tokenizer", "heed_languages"
_FAST = "tokenizer.json"
_FAST_TARGET = "target_tokenizer.json"
_FILES = ("source.spm", "target.spm", "vocab.json")
_SPACE_BEFORE = {"type": "Prepend", "prepend": " "}


@dataclass(frozen=True)
class TokenizerSpec:
    """What a source or target tokenizer is built from, once the order of ids is known."""

    unk: int | None  # the id of the unknown token, if there is one
    build: Callable[[Sequence[int]], Tokenizer]  # given MarianMT's id of each of heed's ids
    language: str
    files: tuple[str, ...]  # names or digests of its files
    names: Mapping[int, str]  # of its tokens, or at least of the special ones

    def same_files(self, other: "TokenizerSpec") -> bool:
        """Whether source and target share one tokenizer."""
        return self.files == other.files


def read_tokenizers(folder: Path, config: Mapping[str, Any]) -> tuple[TokenizerSpec, TokenizerSpec]:
    """The tokenizers of source and target in a MarianMT folder."""
    languages = config.get(LANGUAGES, ("", ""))
    if (folder / _FAST).is_file() and TOKENIZER_TYPE in config:
        target_file = _FAST_TARGET if (folder / _FAST_TARGET).is_file() else _FAST
        target_type = config[TOKENIZER_TYPE]
        types = config.get(SOURCE_TOKENIZER_TYPE, target_type), target_type
        source, target = (
            _read_fast_tokenizer(folder / name, kind, language)
            for name, kind, language in zip((_FAST, target_file), types, languages, strict=True)
        )
        return source, target
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing:
        raise FolderError(
            f"{folder} has no {', '.join(missing)}: heed imports MarianMT's SentencePiece tokenizer "
            f"({', '.join(_FILES)}); it imports a fast tokenizer (tokenizer.json) only if heed exported it"
        )
    settings = read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
    unk = _token_name(settings.get("unk_token", "<unk>"))
    vocabularies = ("vocab.json", "target_vocab.json" if settings.get("separate_vocabs") else "vocab.json")
    source, target = (
        _sentencepiece(folder / f"{side}.spm", folder / name, unk, settings.get(f"{side}_lang") or "")
        for side, name in zip(("source", "target"), vocabularies, strict=True)
    )
    return source, target


def tokenizer_files(tokenizers: TokenizerPair, run: RunConfig) -> dict[str, bytes]:
    """The files of both tokenizers, by name."""
    source, target = tokenizers
    settings = {
        "model_max_length": run.data.max_tokens + 1,
        "source_lang": run.data.source_language,
        "target_lang": run.data.target_language,
    }
    special = dict(zip(("pad_token", "bos_token", "eos_token"), SPECIAL, strict=True))
    if target.kind == "sentencepiece":
        separate = run.model.source_vocab_size is not None
        settings |= {"tokenizer_class": "MarianTokenizer", "unk_token": UNKNOWN, "separate_vocabs": separate, **special}
        files = {"source.spm": to_spm(source)[0], "target.spm": to_spm(target)[0], "vocab.json": _vocab_json(source)}
        files |= {"target_vocab.json": _vocab_json(target)} if separate else {}
        return {"tokenizer_config.json": json_bytes(settings), **files}
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **special}
    settings |= {"split_special_tokens": True}  # text that looks like a special token stays text
    files = {"tokenizer_config.json": json_bytes(settings), _FAST: _to_fast_tokenizer(source)}
    return files if source is target else {**files, _FAST_TARGET: _to_fast_tokenizer(target)}


def _vocab_json(tokenizer: Tokenizer) -> bytes:
    """The content of `vocab.json`: every token with its id."""
    return json_bytes({name: number for number, name in enumerate(to_spm(tokenizer)[1])})


def _sentencepiece(model: Path, vocabulary_file: Path, unk: str, language: str) -> TokenizerSpec:
    spm, vocabulary = read_spm(model), read_json(vocabulary_file)
    if unk not in vocabulary:
        raise FolderError(f"{vocabulary_file} has no {unk}, the unknown token")
    names = {number: name for name, number in vocabulary.items()}

    def build(their_ids: Sequence[int]) -> Tokenizer:
        token_ids = their_ids[len(SPECIAL) : -1]  # ids without a token round up the vocabulary size
        return tokenizer_from_spm(spm, [names.get(number, f"⟨{number}⟩") for number in token_ids])

    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    return TokenizerSpec(int(vocabulary[unk]), build, language, (digest, vocabulary_file.name), names)


def _to_fast_tokenizer(tokenizer: Tokenizer) -> bytes:
    """heed's tokenizer as a fast tokenizer of transformers: eos after every text, a space before it for most types."""
    parts = json.loads(tokenizer.to_json())
    eos = {"SpecialToken": {"id": SPECIAL[EOS], "type_id": 0}}
    parts["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, eos],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}, eos],
        "special_tokens": {SPECIAL[EOS]: {"id": SPECIAL[EOS], "ids": [EOS], "tokens": [SPECIAL[EOS]]}},
    }
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    parts["added_tokens"] = [{"id": number, "content": name, **flags} for number, name in enumerate(SPECIAL)]
    if tokenizer.prefix:
        parts["normalizer"] = _SPACE_BEFORE
        strip = {"type": "Strip", "content": tokenizer.prefix, "start": len(tokenizer.prefix), "stop": 0}
        parts["decoder"] = {"type": "Sequence", "decoders": [parts["decoder"], strip]}
    return json_bytes(parts)


def _read_fast_tokenizer(path: Path, tokenizer_type: Any, language: str) -> TokenizerSpec:
    """The tokenizer that `_to_fast_tokenizer` wrote, read back."""
    parts = read_json(path)
    parts |= {"normalizer": None, "post_processor": None, "added_tokens": []}
    if parts["decoder"]["type"] == "Sequence":
        parts["decoder"] = parts["decoder"]["decoders"][0]
    text = json.dumps(parts, ensure_ascii=False)
    return TokenizerSpec(
        None, lambda _: Tokenizer.from_json(text, tokenizer_type), language, (path.name,), dict(enumerate(SPECIAL))
    )


def _token_name(token: str | dict[str, Any]) -> str:
    """The name of a special token, given as a string or as a dict."""
    return token if isinstance(token, str) else str(token["content"])
