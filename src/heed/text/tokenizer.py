"""Text to token ids and back, exactly.

Every kind of tokenizer here works on the bytes of UTF-8, each shown as one printable character (Hugging Face's
`ByteLevel`). So any Unicode text survives encoding and decoding, spaces included, there is no unknown word, and a
language without spaces is nothing special. The special tokens' names use characters that no byte is shown as, so text
that looks like one stays text.

    bpe         byte pairs, most frequent first: the default
    unigram     the pieces of a unigram language model (the one kind whose training may differ from run to run)
    words       whole words where they are frequent, bytes where they are not
    characters  whole characters where they occur, bytes where they do not
    bytes       256 bytes and nothing else

A model that was trained elsewhere brings a tokenizer that heed uses but does not train (imported_tokenizers.py):

    sentencepiece    pieces of a SentencePiece model
    spaced           words of a list, in pre-tokenised text

Knows nothing of files of text, batches or models.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from heed.errors import DataError, InputError
from heed.text.imported_tokenizers import UNKNOWN, Pretokenized, SentencePiece
from heed.text.tokenizer_checks import BYTE_VALUES, SPECIAL, AnyTokenizerType, TokenizerType, parse_tokenizer_json
from heed.untrusted import read_regular, reason

__all__ = [
    "BYTE_TOKENS",
    "SPECIAL",
    "AnyTokenizerType",
    "Tokenizer",
    "TokenizerType",
    "check_texts",
    "suitable_vocab_size",
]

PAD, BOS, EOS = range(3)
MASK = BOS  # in an encoder's texts, which have no beginning: a masked token (masked LM)
BYTE_TOKENS = tuple(sorted(pre_tokenizers.ByteLevel.alphabet()))

# What a merge costs the trainers grows with the length of each word that has it. Text without spaces or punctuation has
# words of any length (a document, a genome): those are trained on in parts. Languages with spaces have no such words.
_LONGEST_WORD = 1000
_END_OF_PART = re.compile(rf"\w{{{_LONGEST_WORD}}}(?=\w)")

# A word at the start of a sentence is the same token as elsewhere: " word", with a space put before the text.
_WITH_SPACE = ("bpe", "unigram", "words")


def check_texts(texts: Sequence[str]) -> None:
    """Refuse what is not a list of texts: one text alone, None, bytes, numbers, lists in a list."""
    if isinstance(texts, str | bytes | Mapping) or not isinstance(texts, Collection):
        raise InputError(f"expected a list of texts, found {_found(texts)}")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"expected a text (str) at index {index}, found {_found(text)}")


def _found(value: object) -> str:
    shown = repr(value)
    return f"{type(value).__name__}: {shown if len(shown) <= 50 else f'{shown[:49]}…'}"


class Tokenizer:
    """A trained tokenizer; of heed's own kinds, `decode` gives back exactly every text that `encode` was given."""

    def __init__(self, parts: dict[str, Any], kind: AnyTokenizerType) -> None:
        """parts: of a tokenizer.json, as `tokenizer_parts` has checked them."""
        self._backend = _backend(parts, kind)
        self.kind = kind
        self._text = json.dumps(parts, indent=2, ensure_ascii=False)
        self.prefix = " " if kind in _WITH_SPACE else ""  # put before every text but the empty one
        self._imported = _imported(kind, parts, self._backend)

    @classmethod
    def train(cls, texts: Iterable[str], kind: AnyTokenizerType = "bpe", vocab_size: int = 8000) -> "Tokenizer":
        """Train a vocabulary of at most `vocab_size` tokens, special tokens and the 256 bytes included."""
        smallest = len(SPECIAL) + len(BYTE_TOKENS)
        if vocab_size < smallest:
            raise DataError(f"vocab_size = {vocab_size} has no room for {len(SPECIAL)} special tokens and 256 bytes")
        prefix = " " if kind in _WITH_SPACE else ""
        spaced = (prefix + text for text in texts)
        match kind:
            case "bpe":
                backend = _empty(models.BPE(), kind)
                backend.train_from_iterator(_in_parts(spaced), _bpe_trainer(vocab_size))
            case "unigram":
                backend = _empty(models.Unigram(), kind)
                backend.train_from_iterator(_in_parts(spaced), _unigram_trainer(vocab_size))
            case "words" | "characters":
                counted = _empty(models.WordLevel(unk_token=SPECIAL[0]), kind)
                trainer = trainers.WordLevelTrainer(vocab_size=vocab_size, show_progress=False, special_tokens=[])
                counted.train_from_iterator(spaced, trainer)
                frequent = counted.get_vocab()
                backend = _whole(sorted(frequent, key=lambda piece: frequent[piece]), vocab_size, kind)
            case "bytes":
                backend = _whole([], vocab_size, kind)
            case _:
                raise DataError(
                    f"tokenizer = {kind!r} comes with a model from elsewhere and is not learnt: choose one of "
                    f"{', '.join(get_args(TokenizerType))}, or go on from such a model"
                )
        return cls.from_json(_as_trained(backend), kind)

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""
        if self._imported is not None:
            return self._imported.unk_id + 1
        return int(self._backend.get_vocab_size())

    @property
    def encodes_words_independently(self) -> bool:
        """Whether a space that a word follows begins a token, always, so that words can be encoded one by one."""
        return self.prefix == " "

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without special tokens; on all cores. An empty text has none."""
        check_texts(texts)
        try:
            if self._imported is not None:
                return self._imported.encode(texts)
            encoded = self._backend.encode_batch_fast([self.prefix + text if text else "" for text in texts])
        except TypeError:
            for index, text in enumerate(texts):
                if half := re.search("[\ud800-\udfff]", text):
                    where = f"{half[0]!r} at character {half.start()}"
                    raise InputError(f"text {index} has a lone surrogate, {where}: it is not Unicode") from None
            raise
        return [encoding.ids for encoding in encoded]

    def decode(self, batch: Sequence[Sequence[int]]) -> list[str]:
        """The text of each sequence of ids. Special tokens are silent."""
        if self._imported is not None:
            return [self._imported.decode(ids) for ids in batch]
        plain = [[token for token in ids if token >= len(SPECIAL)] for ids in batch]
        return [text.removeprefix(self.prefix) for text in self._backend.decode_batch(plain)]

    def pieces(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes that each token stands for; joined, they are the text, after a space where kinds put one before."""
        if self._imported is not None:
            return self._imported.pieces(ids)
        names = (str(self._backend.id_to_token(token)) if token >= len(SPECIAL) else "" for token in ids)
        return [bytes(BYTE_VALUES[character] for character in name) for name in names]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Each token as text to be shown; bytes that are no whole character are shown as �."""
        shown = [piece.decode(errors="replace") for piece in self.pieces(ids)]
        if self._imported is None:
            return shown
        return [UNKNOWN if token == self._imported.unk_id else text for token, text in zip(ids, shown, strict=True)]

    def to_json(self) -> str:
        """Everything there is to know, in Hugging Face's format."""
        return self._text

    @classmethod
    def from_json(cls, text: str | bytes, kind: AnyTokenizerType) -> "Tokenizer":
        """The tokenizer that `to_json` wrote; parts that heed does not use are refused."""
        return cls(parse_tokenizer_json(text, kind), kind)

    @classmethod
    def load(cls, path: Path, kind: AnyTokenizerType) -> "Tokenizer":
        """Read a `tokenizer.json`."""
        try:
            return cls.from_json(read_regular(path), kind)
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: {reason(error)}") from None


def suitable_vocab_size(pairs: int) -> int:
    """A vocabulary for a corpus of this many pairs: about 8,000 for 30 thousand, 32,000 from 4 million on.

    Words seen a few times are learnt badly, so a small corpus wants small pieces; the exponent joins the two sizes that
    published systems use at those two ends.
    """
    return int(max(1000, min(32_000, 32_000 * (pairs / 4_000_000) ** 0.28)) / 8) * 8


def _imported(kind: AnyTokenizerType, parts: dict[str, Any], backend: Backend) -> SentencePiece | Pretokenized | None:
    """The implementation of a kind that heed does not train; none for its own kinds."""
    if kind == "sentencepiece":
        return SentencePiece(parts, backend, len(SPECIAL))
    return Pretokenized(parts, len(SPECIAL)) if kind == "spaced" else None


def _backend(parts: dict[str, Any], kind: AnyTokenizerType) -> Backend:
    """The tokenizers library's object, built from the vocabulary alone: everything else follows from the kind."""
    model, vocabulary = parts["model"], parts["model"]["vocab"]
    match kind:
        case "sentencepiece":
            return Backend(models.Unigram([(name, float(score)) for name, score in vocabulary], model["unk_id"]))
        case "spaced":
            return Backend(models.WordLevel(vocabulary, unk_token=model["unk_token"]))
        case "unigram":
            return _empty(models.Unigram([(name, float(score)) for name, score in vocabulary]), kind)
        case _:
            merges = [(left, right) for left, right in model["merges"]]
            return _empty(models.BPE(vocabulary, merges, ignore_merges=kind != "bpe"), kind)


def _pieces(kind: TokenizerType) -> pre_tokenizers.PreTokenizer:
    """The pre-tokenizer: splits text into words, or into characters."""
    if kind == "characters":
        every_character = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([every_character, as_bytes])
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _empty(model: models.Model, kind: TokenizerType) -> Backend:
    backend = Backend(model)
    backend.pre_tokenizer = _pieces(kind)
    backend.decoder = decoders.ByteLevel()
    return backend


def _in_parts(texts: Iterable[str]) -> Iterator[str]:
    """Texts, split inside words that are too long for the trainers."""
    for text in texts:
        ends = [end.end() for end in _END_OF_PART.finditer(text)] if len(text) > _LONGEST_WORD else []
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


def _whole(frequent: list[str], vocab_size: int, kind: TokenizerType) -> Backend:
    """Pieces that are known are taken whole; any other is spelt in bytes."""
    names = list(dict.fromkeys((*SPECIAL, *BYTE_TOKENS, *frequent)))[:vocab_size]
    return _empty(models.BPE({name: number for number, name in enumerate(names)}, [], ignore_merges=True), kind)


def _as_trained(backend: Backend) -> str:
    """Its JSON without added tokens: those are found in text, and here special tokens are ids and nothing else."""
    parts = json.loads(backend.to_str())
    parts["added_tokens"] = []
    return json.dumps(parts, ensure_ascii=False)
