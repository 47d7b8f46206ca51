"""Compiled BPE-dropout gives exactly the ids of the Python one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heed.backends.cpu.bpe import NativeBpeDropout
from heed.backends.cpu.library import missing_for_compiled_code
from heed.backends.select import bpe_dropout
from heed.errors import DataError
from heed.text.bpe_dropout import BpeDropout
from heed.text.tokenizer import BOS
from tests.text.bpe_examples import ANY_TEXT, OVERLAPPING, TEXTS, TRAINED, tokenizer_with_merges

pytestmark = pytest.mark.skipif(missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code()))

PROBABILITIES = (0, 0.1, 0.5, 0.9, 0.999)
NATIVE_AND_PYTHON = {
    probability: (NativeBpeDropout(TRAINED, probability), BpeDropout(TRAINED, probability))
    for probability in PROBABILITIES
}


@settings(max_examples=300, deadline=None)
@given(texts=st.lists(ANY_TEXT, max_size=5), probability=st.sampled_from(PROBABILITIES), key=st.text())
def test_native_bpe_dropout_segments_any_text_like_the_python_one(
    texts: list[str], probability: float, key: str
) -> None:
    ids = TRAINED.encode([*texts, *TEXTS])
    keys = [f"{key} {number}" for number in range(len(ids))]
    native, python = (segment(ids, keys) for segment in NATIVE_AND_PYTHON[probability])
    assert native == python


@pytest.mark.parametrize("word", ["street", "stress", "banana", "an", "tree", "na" * 300])
def test_native_bpe_dropout_chooses_among_overlapping_merges_like_the_python_one(word: str) -> None:
    tokenizer = tokenizer_with_merges(OVERLAPPING)
    count = 500 if len(word) < 100 else 50
    ids, keys = tokenizer.encode([word]) * count, [str(number) for number in range(count)]
    assert NativeBpeDropout(tokenizer, 0.4)(ids, keys) == BpeDropout(tokenizer, 0.4)(ids, keys)


@pytest.mark.parametrize("cached_words", [0, 1, 3])
def test_the_size_of_the_word_cache_does_not_change_the_ids(cached_words: int) -> None:
    ids = TRAINED.encode(TEXTS) * 3
    keys = [str(number) for number in range(len(ids))]
    assert NativeBpeDropout(TRAINED, 0.3, cached_words)(ids, keys) == BpeDropout(TRAINED, 0.3)(ids, keys)


def test_merge_tables_of_any_size_work() -> None:
    for count in (0, 1, 2, 7, 16):
        tokenizer = tokenizer_with_merges(OVERLAPPING[:count])
        ids = tokenizer.encode(["street banana"])
        assert NativeBpeDropout(tokenizer, 0)(ids, ["key"]) == ids


def test_empty_input_gives_empty_output() -> None:
    segment = NATIVE_AND_PYTHON[0.5][0]
    assert segment([], []) == []
    assert segment([[], []], ["a", "b"]) == [[], []]


def test_special_tokens_are_refused() -> None:
    with pytest.raises(DataError, match="without special tokens"):
        NATIVE_AND_PYTHON[0.5][0]([[BOS]], ["key"])


def test_without_a_compiler_the_python_bpe_dropout_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(bpe_dropout(TRAINED, 0.1), NativeBpeDropout)
    monkeypatch.setattr("heed.backends.select.missing_for_compiled_code", lambda: "there is no C compiler")
    assert type(bpe_dropout(TRAINED, 0.1)) is BpeDropout
