import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.text.split import Piece, split


def characters(texts: Sequence[str]) -> list[int]:
    return [len(text) for text in texts]


def joined(pieces: list[Piece]) -> str:
    return "".join(piece.before + piece.text + piece.after for piece in pieces)


@given(st.text(alphabet=st.sampled_from("ab. !?\n\t,;。、\u2028é犬\"')"), max_size=80), st.integers(1, 20))
def test_nothing_is_dropped_and_every_piece_fits(text: str, longest: int) -> None:
    pieces = split(text, longest, characters)
    assert joined(pieces) == text
    assert all(len(piece.text) <= longest for piece in pieces)
    assert not any("\n" in piece.text for piece in pieces)


@given(st.text(max_size=60), st.integers(1, 20))
def test_it_holds_for_any_text(text: str, longest: int) -> None:
    assert joined(split(text, longest, characters)) == text


@pytest.mark.parametrize(
    ("text", "longest", "expected"),
    [
        ("One two. Three four! Five?", 12, ["One two.", "Three four!", "Five?"]),
        ("One two. Three four! Five?", 21, ["One two. Three four!", "Five?"]),
        ('He said "no." Then he went.', 14, ['He said "no."', "Then he went."]),
        ("今日は。明日は！はい", 4, ["今日は。", "明日は！", "はい"]),
        ("first clause, second clause", 15, ["first clause,", "second clause"]),
        ("words without any mark", 14, ["words without", "any mark"]),
        ("donaudampfschiff", 8, ["donaudam", "pfschiff"]),
        ("short", 100, ["short"]),
        ("Version 2.0 is out. Yes.", 20, ["Version 2.0 is out.", "Yes."]),
    ],
)
def test_texts_are_cut_where_a_person_would(text: str, longest: int, expected: list[str]) -> None:
    assert [piece.text for piece in split(text, longest, characters)] == expected


def test_lines_are_never_joined_and_blank_ones_stay() -> None:
    pieces = split("a b\n\n  \nc\r\n", 100, characters)
    assert [piece.text for piece in pieces if piece.text] == ["a b", "c"]
    assert joined(pieces) == "a b\n\n  \nc\r\n"


def test_a_hostile_text_takes_no_longer_than_a_friendly_one() -> None:
    """Work grows with the text, not with its square: how often a character is looked at is counted, not timed."""
    looked = 0

    def count(texts: Sequence[str]) -> list[int]:
        nonlocal looked
        looked += sum(map(len, texts))
        return characters(texts)

    for text in ("." * 20_000, "a" * 20_000, ". " * 10_000, "a, " * 7_000, "".join(random.choices(".a ", k=20_000))):
        looked = 0
        assert joined(split(text, 50, count)) == text
        assert looked < 15 * len(text)
