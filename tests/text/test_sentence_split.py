import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.errors import InputError
from heed.text.sentence_split import SourceLengths, Splitter, TextSegment, TokenCounter


def characters(texts: Sequence[str]) -> list[int]:
    return [len(text) for text in texts]


def split(text: str, longest: int, count: TokenCounter = characters) -> list[TextSegment]:
    """Cut only what is too long."""
    return Splitter(longest).split(text, "line", count)


def joined(pieces: list[TextSegment]) -> str:
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


SENTENCES = SourceLengths(sentences=1, common=20, longest=30)


def texts(splitter: Splitter, text: str) -> list[str]:
    return [piece.text for piece in splitter.split(text, "sentences", characters) if piece.text]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two.", ["One.", "Two."]),
        ("One sentence of 25 chars.", ["One sentence of 25 chars."]),
        ("  kept  as it is. ", ["  kept  as it is. "]),
        ("A sentence, longer than any, of training.", ["A sentence, longer than any,", "of training."]),
        ("thirty-five letters without a clause", ["thirty-five letters without a clause"]),  # under twice the longest
        (
            "more than sixty letters in a row without anything like a clause",
            ["more than sixty letters in a", "row without anything like a", "clause"],
        ),
        ("今日は。明日は！", ["今日は。", "明日は！"]),
    ],
)
def test_a_line_is_cut_by_what_training_lines_held(text: str, expected: list[str]) -> None:
    assert texts(Splitter(100, SENTENCES), text) == expected


def test_a_model_trained_on_two_sentences_a_line_gets_two() -> None:
    splitter = Splitter(100, SourceLengths(sentences=2, common=20, longest=30))
    assert texts(splitter, "One. Two. Three. Four. Five.") == ["One. Two.", "Three. Four.", "Five."]
    assert texts(splitter, "Eleven ch. Twelve char. Two.") == ["Eleven ch.", "Twelve char. Two."]


def test_without_any_record_every_sentence_is_a_piece() -> None:
    assert texts(Splitter(100), "One. Two! Three?") == ["One.", "Two!", "Three?"]


def test_a_text_translated_at_once_keeps_its_lines_and_must_fit() -> None:
    assert Splitter(100).split("One. Two.\nThree.", "none", characters) == [TextSegment("", "One. Two.\nThree.", "")]
    assert Splitter(100).split(" \n", "none", characters) == [TextSegment(" \n", "", "")]
    with pytest.raises(InputError, match="a text of 16 tokens is longer than this model's limit of 15"):
        Splitter(15).split("One. Two.\nThree.", "none", characters)


def test_only_pieces_that_follow_a_mark_without_a_space_abut() -> None:
    pieces = Splitter(8, SENTENCES).split("今日は。明日は！ はい。Donaudampfschifffahrt.", "sentences", characters)
    assert [(piece.text, piece.no_space_before) for piece in pieces][:4] == [
        ("今日は。", False),
        ("明日は！", True),
        ("はい。", False),
        ("Donau", True),
    ]
    assert not any(piece.no_space_before for piece in pieces[4:])


@given(
    st.text(alphabet=st.sampled_from("ab. !?\n\t,;。、\u2028é犬\"')A「」"), max_size=80),
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 20),
)
def test_nothing_is_dropped_whatever_training_was_like(text: str, sentences: int, common: int, longest: int) -> None:
    trained = SourceLengths(sentences, min(common, longest), longest)
    pieces = Splitter(30, trained).split(text, "sentences", characters)
    assert joined(pieces) == text
    assert all(len(piece.text) <= min(2 * longest, 30) for piece in pieces)
