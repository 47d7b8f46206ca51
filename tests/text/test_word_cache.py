import sys
import unicodedata
from collections.abc import Sequence
from itertools import product
from typing import get_args

import numpy as np
import pytest
from tokenizers import AddedToken, pre_tokenizers
from tokenizers import Tokenizer as Backend

from heed.errors import DataError
from heed.text.tokenizer import Tokenizer, TokenizerType
from heed.text.word_cache import WordCache

# With tokens for runs of white space, ids depend on where such runs are split.
PARTS = ("", "a", "dog", "dog's", "don't", "12", "…", "犬", "é", " ", "  ", "   ", "\t", "\t ", "\u00a0", "\x1c", "\r")
TEXTS = ["".join(parts) for parts in product(PARTS, repeat=3)]
TRAINED = {kind: Tokenizer.train([text * 2 for text in TEXTS], kind, 600) for kind in get_args(TokenizerType)}
WORD_TYPES = ("bpe", "unigram", "words")


def encode_rows(cache: WordCache, texts: Sequence[str]) -> list[list[int]]:
    ids, lengths = cache(texts)
    assert len(lengths) == len(texts)
    return [row.tolist() for row in np.split(ids, np.cumsum(lengths)[:-1])]


def test_the_types_that_encode_words_independently_are_bpe_unigram_and_words() -> None:
    assert [kind for kind, tokenizer in TRAINED.items() if tokenizer.encodes_words_independently] == list(WORD_TYPES)


@pytest.mark.parametrize("kind", WORD_TYPES)
def test_cached_ids_equal_the_tokenizers_for_any_white_space(kind: TokenizerType) -> None:
    tokenizer = TRAINED[kind]
    cache = WordCache(tokenizer.encode)
    for _ in range(2):  # first new words, then cached ones
        assert encode_rows(cache, TEXTS) == tokenizer.encode(TEXTS)


def test_cached_ids_equal_the_tokenizers_for_every_separator_and_control_character() -> None:
    """Python and the tokenizer may disagree on what white space is; the ids must not."""
    tokenizer = TRAINED["bpe"]
    separators = [
        c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) in ("Zs", "Zl", "Zp", "Cc", "Cf")
    ]
    assert len(separators) > 200
    texts = [form.format(c) for c in separators for form in ("a {}b", "a{} b", "a {} b", "{}", " {} ", "{} a", "a {}")]
    assert encode_rows(WordCache(tokenizer.encode), texts) == tokenizer.encode(texts)


class RecordingEncoder:
    """Encodes texts and records them."""

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        self.encoded += texts
        return TRAINED["bpe"].encode(texts)


def test_a_word_is_encoded_once() -> None:
    encode = RecordingEncoder()
    cache = WordCache(encode)
    for text in ("dog a dog", "a dog", "a 12  dog"):
        assert encode_rows(cache, ["", text, text]) == TRAINED["bpe"].encode(["", text, text])
    assert sorted(encode.encoded) == ["12 ", "a", "dog"]


def test_a_full_cache_evicts_words_and_gives_the_same_ids() -> None:
    encode = RecordingEncoder()
    cache = WordCache(encode, capacity=20)
    texts = [f"dog{number}" for number in range(40)]
    for text in texts * 2:
        assert encode_rows(cache, [text]) == TRAINED["bpe"].encode([text])
    assert sorted(encode.encoded) == sorted(texts * 2)  # the first were evicted before they came again


def test_no_texts_give_no_ids() -> None:
    ids, lengths = WordCache(TRAINED["bpe"].encode)([])
    assert ids.tolist() == lengths.tolist() == []


def tokenizer_with(name: str, part: object) -> Tokenizer:
    backend = Backend.from_str(TRAINED["bpe"].to_json())
    if name == "added_tokens":
        backend.add_tokens([part])
    else:
        setattr(backend, name, part)
    return Tokenizer.from_json(backend.to_str(), "bpe")


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("added_tokens", AddedToken("dog a")),
        ("pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),
        ("pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)),
        ("pre_tokenizer", pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(add_prefix_space=False)])),
    ],
)
def test_a_tokenizer_that_does_not_split_into_words_is_refused(name: str, part: object) -> None:
    assert tokenizer_with("decoder", Backend.from_str(TRAINED["bpe"].to_json()).decoder).encodes_words_independently
    with pytest.raises(DataError, match=f"unsupported tokenizer: expected {name} = "):
        tokenizer_with(name, part)
