"""Tokenizers: lossless byte-level encoding of text as token ids, and decoding.

Every tokenizer type that heed trains works on UTF-8 bytes, each represented by one printable character (Hugging Face's
`ByteLevel`). So any Unicode text survives encoding and decoding, spaces included; there is no unknown token, and
languages without spaces need no special treatment. The names of the special tokens use characters that represent no
byte, so text can never encode to a special token.

    bpe         byte-level BPE: the default
    unigram     byte-level unigram language model (the only type whose training is not deterministic)
    words       frequent words as one token each, with byte fallback
    characters  frequent characters as one token each, with byte fallback
    bytes       the 256 bytes only

A model imported from another toolkit brings a tokenizer that heed uses but does not train (imported_tokenizers.py):

    sentencepiece    a SentencePiece unigram model
    spaced           a word list for pre-tokenised text

Knows nothing of text files, batches or models.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, TypeAlias, get_args

from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as HFTokenizer

from heed.errors import DataError, InputError
from heed.text.imported_tokenizers import UNKNOWN, Pretokenized, SentencePiece
from heed.text.lexicon import MARKS
from heed.text.tokenizer_checks import (
    BYTE_VALUES,
    SPECIAL,
    SPLITS_WORDS,
    WITH_MARKS,
    WORDS_WITH_MARKS,
    AnyTokenizerType,
    TokenizerType,
    parse_tokenizer_json,
)
from heed.untrusted import read_regular, reason

__all__ = [
    "BYTE_TOKENS",
    "SPECIAL",
    "AnyTokenizerType",
    "Tokenizer",
    "TokenizerPair",
    "TokenizerType",
    "check_texts",
]

PAD, BOS, EOS = range(3)
MASK = BOS  # the mask token of a masked LM: encoder inputs have no BOS, so its id is free
BYTE_TOKENS = tuple(sorted(pre_tokenizers.ByteLevel.alphabet()))

# The cost of a merge in training grows with the length of the words it occurs in. Text without spaces or punctuation
# has words of any length (a document, a genome), so the trainers get longer words in parts of this many characters.
_MAX_WORD_LENGTH = 1000
_LETTER = rf"[\w{MARKS}\u200c\u200d]"
_WORD_PART = re.compile(rf"{_LETTER}{{{_MAX_WORD_LENGTH}}}(?={_LETTER})")

# In Hindi, Thai or vocalised Arabic ByteLevel would end a word at each vowel sign. Where such a share of the first
# characters are marks, words are split by another expression; all other tokenizers remain as they were.
_MANY_MARKS, _FIRST_CHARACTERS = 0.01, 1_000_000
_MARK = re.compile(f"[{MARKS}]")


def check_texts(texts: Sequence[str]) -> None:
    """Raise an InputError unless `texts` is a collection of str; a single str is not one."""
    if isinstance(texts, str | bytes | Mapping) or not isinstance(texts, Collection):
        raise InputError(f"expected a list of texts, found {_describe(texts)}")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"expected a text (str) at index {index}, found {_describe(text)}")


def _describe(value: object) -> str:
    shown = repr(value)
    return f"{type(value).__name__}: {shown if len(shown) <= 50 else f'{shown[:49]}…'}"


class Tokenizer:
    """A trained tokenizer; except for imported types, `decode` restores every text that `encode` was given, exactly."""

    def __init__(self, parts: dict[str, Any], kind: AnyTokenizerType) -> None:
        """parts: the content of a tokenizer.json, as `parse_tokenizer_json` returns it."""
        self._hf_tokenizer = _build_hf_tokenizer(parts, kind)
        self.kind = kind
        self._text = json.dumps(parts, indent=2, ensure_ascii=False)
        # Prepended to every text that is not empty, so that its first word is the same token, " word", as elsewhere.
        self.prefix = " " if kind in SPLITS_WORDS else ""
        self._imported = _imported(kind, parts, self._hf_tokenizer)

    @classmethod
    def train(cls, texts: Iterable[str], kind: AnyTokenizerType = "bpe", vocab_size: int = 8000) -> "Tokenizer":
        """Train a tokenizer of at most `vocab_size` tokens, special tokens and the 256 bytes included."""
        smallest = len(SPECIAL) + len(BYTE_TOKENS)
        if vocab_size < smallest:
            needed = f"{len(SPECIAL)} special tokens and 256 bytes need {smallest}"
            raise DataError(f"vocab_size = {vocab_size} is too small: {needed}")
        prefix = " " if kind in SPLITS_WORDS else ""
        first, texts = _first(texts)
        marks = kind in SPLITS_WORDS and _has_marks(first)
        prefixed = (prefix + text for text in texts)
        match kind:
            case "bpe":
                hf_tokenizer = _byte_level_tokenizer(models.BPE(), kind, marks=marks)
                hf_tokenizer.train_from_iterator(_split_long_words(prefixed), _bpe_trainer(vocab_size))
            case "unigram":
                hf_tokenizer = _byte_level_tokenizer(models.Unigram(), kind, marks=marks)
                hf_tokenizer.train_from_iterator(_split_long_words(prefixed), _unigram_trainer(vocab_size))
            case "words" | "characters":
                word_counter = _byte_level_tokenizer(models.WordLevel(unk_token=SPECIAL[0]), kind, marks=marks)
                trainer = trainers.WordLevelTrainer(vocab_size=vocab_size, show_progress=False, special_tokens=[])
                word_counter.train_from_iterator(prefixed, trainer)
                frequent = word_counter.get_vocab()
                pieces = sorted(frequent, key=lambda piece: frequent[piece])
                hf_tokenizer = _with_byte_fallback(pieces, vocab_size, kind, marks=marks)
            case "bytes":
                hf_tokenizer = _with_byte_fallback([], vocab_size, kind, marks=False)
            case _:
                trainable = ", ".join(get_args(TokenizerType))
                if kind in get_args(AnyTokenizerType):
                    raise DataError(
                        f"tokenizer = {kind!r} cannot be trained, only imported with a model: choose one of "
                        f"{trainable}, or start from an imported model (--init-from)"
                    )
                raise DataError(f"tokenizer = {kind!r} is unknown: choose one of {trainable}")
        return cls.from_json(_without_added_tokens(hf_tokenizer), kind)

    @property
    def vocab_size(self) -> int:
        """The number of token ids, special tokens included."""
        if self._imported is not None:
            return self._imported.unk_id + 1
        return int(self._hf_tokenizer.get_vocab_size())

    @property
    def encodes_words_independently(self) -> bool:
        """Whether a space before a word always starts a token, so that words can be encoded one by one."""
        return self.prefix == " "

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text, without special tokens; an empty text has none. Runs on all cores."""
        check_texts(texts)
        try:
            if self._imported is not None:
                return self._imported.encode(texts)
            encoded = self._hf_tokenizer.encode_batch_fast([self.prefix + text if text else "" for text in texts])
        except TypeError:
            for index, text in enumerate(texts):
                if surrogate := re.search("[\ud800-\udfff]", text):
                    where = f"{surrogate[0]!r} at character {surrogate.start()}"
                    raise InputError(f"text {index} has a lone surrogate, {where}: it is not Unicode") from None
            raise
        return [encoding.ids for encoding in encoded]

    def decode(self, batch: Sequence[Sequence[int]]) -> list[str]:
        """The text of each sequence of ids; special tokens are skipped."""
        if self._imported is not None:
            return [self._imported.decode(ids) for ids in batch]
        plain = [[token for token in ids if token >= len(SPECIAL)] for ids in batch]
        return [text.removeprefix(self.prefix) for text in self._hf_tokenizer.decode_batch(plain)]

    def pieces(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of each token; concatenated they are `prefix` and the text. Special tokens have none."""
        if self._imported is not None:
            return self._imported.pieces(ids)
        names = (str(self._hf_tokenizer.id_to_token(token)) if token >= len(SPECIAL) else "" for token in ids)
        return [bytes(BYTE_VALUES[character] for character in name) for name in names]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Each token as text for display; incomplete UTF-8 sequences are shown as �."""
        shown = [piece.decode(errors="replace") for piece in self.pieces(ids)]
        if self._imported is None:
            return shown
        return [UNKNOWN if token == self._imported.unk_id else text for token, text in zip(ids, shown, strict=True)]

    def to_json(self) -> str:
        """The whole tokenizer as the content of a Hugging Face `tokenizer.json`."""
        return self._text

    @classmethod
    def from_json(cls, text: str | bytes, kind: AnyTokenizerType) -> "Tokenizer":
        """Parse what `to_json` wrote; a `tokenizer.json` with components that heed does not write is a DataError."""
        return cls(parse_tokenizer_json(text, kind), kind)

    @classmethod
    def load(cls, path: Path, kind: AnyTokenizerType) -> "Tokenizer":
        """Read a `tokenizer.json` file."""
        try:
            return cls.from_json(read_regular(path), kind)
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: {reason(error)}") from None


# Of source and target; the same one twice if they share a vocabulary.
TokenizerPair: TypeAlias = tuple[Tokenizer, Tokenizer]


def _imported(
    kind: AnyTokenizerType, parts: dict[str, Any], hf_tokenizer: HFTokenizer
) -> SentencePiece | Pretokenized | None:
    """The implementation of an imported tokenizer type; None for the types that heed trains."""
    if kind == "sentencepiece":
        return SentencePiece(parts, hf_tokenizer, len(SPECIAL))
    return Pretokenized(parts, len(SPECIAL)) if kind == "spaced" else None


def _build_hf_tokenizer(parts: dict[str, Any], kind: AnyTokenizerType) -> HFTokenizer:
    """The `tokenizers` object, built from the vocabulary and merges alone: the type determines everything else."""
    model, vocabulary, marks = parts["model"], parts["model"]["vocab"], parts["pre_tokenizer"] == WITH_MARKS
    match kind:
        case "sentencepiece":
            return HFTokenizer(models.Unigram([(name, float(score)) for name, score in vocabulary], model["unk_id"]))
        case "spaced":
            return HFTokenizer(models.WordLevel(vocabulary, unk_token=model["unk_token"]))
        case "unigram":
            unigrams = models.Unigram([(name, float(score)) for name, score in vocabulary])
            return _byte_level_tokenizer(unigrams, kind, marks=marks)
        case _:
            merges = [(left, right) for left, right in model["merges"]]
            return _byte_level_tokenizer(models.BPE(vocabulary, merges, ignore_merges=kind != "bpe"), kind, marks=marks)


def _first(texts: Iterable[str]) -> tuple[list[str], Iterable[str]]:
    """The first texts, and all of them."""
    rest, first, characters = iter(texts), list[str](), 0
    for text in rest:
        first.append(text)
        characters += len(text)
        if characters >= _FIRST_CHARACTERS:
            break
    return first, chain(first, rest)


def _has_marks(texts: Sequence[str]) -> bool:
    """Whether combining marks are a considerable part of these texts."""
    return sum(len(_MARK.findall(text)) for text in texts) > _MANY_MARKS * sum(map(len, texts))


def _pre_tokenizer(kind: TokenizerType, *, marks: bool) -> pre_tokenizers.PreTokenizer:
    if kind == "characters" or marks:
        pattern = r"[\s\S]" if kind == "characters" else WORDS_WITH_MARKS
        as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), as_bytes])
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _byte_level_tokenizer(model: models.Model, kind: TokenizerType, *, marks: bool) -> HFTokenizer:
    """marks: whether combining marks are parts of words."""
    hf_tokenizer = HFTokenizer(model)
    hf_tokenizer.pre_tokenizer = _pre_tokenizer(kind, marks=marks)
    hf_tokenizer.decoder = decoders.ByteLevel()
    return hf_tokenizer


def _split_long_words(texts: Iterable[str]) -> Iterator[str]:
    """Split texts inside words of more than `_MAX_WORD_LENGTH` characters."""
    for text in texts:
        ends = [part.end() for part in _WORD_PART.finditer(text)] if len(text) > _MAX_WORD_LENGTH else []
        yield from (text[start:end] for start, end in pairwise((0, *ends, len(text))))


def _bpe_trainer(vocab_size: int) -> trainers.BpeTrainer:
    return trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=list(SPECIAL),
        initial_alphabet=list(BYTE_TOKENS),
        show_progress=False,
    )


def _unigram_trainer(vocab_size: int) -> trainers.UnigramTrainer:
    return trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL), initial_alphabet=list(BYTE_TOKENS), show_progress=False
    )


def _with_byte_fallback(frequent: list[str], vocab_size: int, kind: TokenizerType, *, marks: bool) -> HFTokenizer:
    """A tokenizer in which the frequent pieces are one token each and everything else is encoded as bytes."""
    names = list(dict.fromkeys((*SPECIAL, *BYTE_TOKENS, *frequent)))[:vocab_size]
    vocabulary = {name: token_id for token_id, name in enumerate(names)}
    return _byte_level_tokenizer(models.BPE(vocabulary, [], ignore_merges=True), kind, marks=marks)


def _without_added_tokens(hf_tokenizer: HFTokenizer) -> str:
    """The tokenizer's JSON without added tokens: `tokenizers` would match those in text."""
    parts = json.loads(hf_tokenizer.to_str())
    parts["added_tokens"] = []
    return json.dumps(parts, ensure_ascii=False)
