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

# Runs of white space must be tokens of their own, or it would not matter where they are cut.
PARTS = ("", "a", "dog", "dog's", "don't", "12", "…", "犬", "é", " ", "  ", "   ", "\t", "\t ", "\u00a0", "\x1c", "\r")
TEXTS = ["".join(parts) for parts in product(PARTS, repeat=3)]
TRAINED = {kind: Tokenizer.train([text * 2 for text in TEXTS], kind, 600) for kind in get_args(TokenizerType)}
BY_WORDS = ("bpe", "unigram", "words")


def rows(words: WordCache, texts: Sequence[str]) -> list[list[int]]:
    ids, lengths = words(texts)
    assert len(lengths) == len(texts)
    return [row.tolist() for row in np.split(ids, np.cumsum(lengths)[:-1])]


def test_the_kinds_that_put_a_space_before_text_cut_it_into_words() -> None:
    assert [kind for kind, tokenizer in TRAINED.items() if tokenizer.encodes_words_independently] == list(BY_WORDS)


@pytest.mark.parametrize("kind", BY_WORDS)
def test_word_by_word_is_text_by_text_whatever_the_white_space(kind: TokenizerType) -> None:
    tokenizer = TRAINED[kind]
    words = WordCache(tokenizer.encode)
    for _ in range(2):  # unknown words, and known ones
        assert rows(words, TEXTS) == tokenizer.encode(TEXTS)


def test_every_character_that_is_no_letter_may_stand_beside_a_space() -> None:
    """Python and the tokenizer need not agree on what white space is; this is where they would have to."""
    tokenizer = TRAINED["bpe"]
    others = [
        c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) in ("Zs", "Zl", "Zp", "Cc", "Cf")
    ]
    assert len(others) > 200
    texts = [form.format(c) for c in others for form in ("a {}b", "a{} b", "a {} b", "{}", " {} ", "{} a", "a {}")]
    assert rows(WordCache(tokenizer.encode), texts) == tokenizer.encode(texts)


class Counting:
    """Encodes, and keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        self.asked += texts
        return TRAINED["bpe"].encode(texts)


def test_a_word_is_cut_once() -> None:
    encode = Counting()
    words = WordCache(encode)
    for text in ("dog a dog", "a dog", "a 12  dog"):
        assert rows(words, ["", text, text]) == TRAINED["bpe"].encode(["", text, text])
    assert sorted(encode.asked) == ["12 ", "a", "dog"]


def test_what_is_remembered_is_bounded_and_no_result_depends_on_it() -> None:
    encode = Counting()
    words = WordCache(encode, capacity=20)
    texts = [f"dog{number}" for number in range(40)]
    for text in texts * 2:
        assert rows(words, [text]) == TRAINED["bpe"].encode([text])
    assert sorted(encode.asked) == sorted(texts * 2)  # the first were forgotten when the last came


def test_no_texts_have_no_ids() -> None:
    ids, lengths = WordCache(TRAINED["bpe"].encode)([])
    assert ids.tolist() == lengths.tolist() == []


def with_part(name: str, part: object) -> Tokenizer:
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
def test_a_tokenizer_that_would_cut_otherwise_than_into_words_is_refused(name: str, part: object) -> None:
    assert with_part("decoder", Backend.from_str(TRAINED["bpe"].to_json()).decoder).encodes_words_independently
    with pytest.raises(DataError, match=f"unsupported tokenizer: expected {name} = "):
        with_part(name, part)
