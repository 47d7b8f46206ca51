"""Compiled BPE-dropout cuts as the plain one does, number for number."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heed.backends.cpu.bpe import NativeBpeDropout
from heed.backends.cpu.library import missing_for_compiled_code
from heed.backends.select import bpe_dropout
from heed.errors import DataError
from heed.text.bpe_dropout import BpeDropout
from heed.text.tokenizer import BOS
from tests.text.test_bpe_dropout import ANY_TEXT, OVERLAPPING, TEXTS, TRAINED, handmade

pytestmark = pytest.mark.skipif(missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code()))

CHANCES = (0, 0.1, 0.5, 0.9, 0.999)
BOTH = {chance: (NativeBpeDropout(TRAINED, chance), BpeDropout(TRAINED, chance)) for chance in CHANCES}


@settings(max_examples=300, deadline=None)
@given(texts=st.lists(ANY_TEXT, max_size=5), chance=st.sampled_from(CHANCES), key=st.text())
def test_any_text_is_cut_as_the_plain_one_cuts_it(texts: list[str], chance: float, key: str) -> None:
    ids = TRAINED.encode([*texts, *TEXTS])
    keys = [f"{key} {number}" for number in range(len(ids))]
    own, plain = (cut(ids, keys) for cut in BOTH[chance])
    assert own == plain


@pytest.mark.parametrize("word", ["street", "stress", "banana", "an", "tree", "na" * 300])
def test_merges_that_compete_are_chosen_as_the_plain_one_chooses(word: str) -> None:
    tokenizer = handmade(OVERLAPPING)
    count = 500 if len(word) < 100 else 50
    ids, keys = tokenizer.encode([word]) * count, [str(number) for number in range(count)]
    assert NativeBpeDropout(tokenizer, 0.4)(ids, keys) == BpeDropout(tokenizer, 0.4)(ids, keys)


@pytest.mark.parametrize("remembered", [0, 1, 3])
def test_what_is_remembered_changes_nothing(remembered: int) -> None:
    ids = TRAINED.encode(TEXTS) * 3
    keys = [str(number) for number in range(len(ids))]
    assert NativeBpeDropout(TRAINED, 0.3, remembered)(ids, keys) == BpeDropout(TRAINED, 0.3)(ids, keys)


def test_merges_are_found_in_a_table_of_any_size() -> None:
    for count in (0, 1, 2, 7, 16):
        tokenizer = handmade(OVERLAPPING[:count])
        ids = tokenizer.encode(["street banana"])
        assert NativeBpeDropout(tokenizer, 0)(ids, ["key"]) == ids


def test_nothing_stays_nothing() -> None:
    cut = BOTH[0.5][0]
    assert cut([], []) == []
    assert cut([[], []], ["a", "b"]) == [[], []]


def test_special_tokens_are_refused() -> None:
    with pytest.raises(DataError, match="without special tokens"):
        BOTH[0.5][0]([[BOS]], ["key"])


def test_without_a_compiler_the_plain_one_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(bpe_dropout(TRAINED, 0.1), NativeBpeDropout)
    monkeypatch.setattr("heed.backends.select.missing_for_compiled_code", lambda: "there is no C compiler")
    assert type(bpe_dropout(TRAINED, 0.1)) is BpeDropout
