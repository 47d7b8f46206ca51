import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.errors import InputError
from heed.text.sentence_split import SourceLengths, Splitter, TextSegment, TokenCounter


def characters(split_into_sentences: Sequence[str]) -> list[int]:
    return [len(text) for text in split_into_sentences]


def split(text: str, max_tokens: int, count: TokenCounter = characters) -> list[TextSegment]:
    """Split only texts that are too long."""
    return Splitter(max_tokens).split(text, "line", count)


def joined(segments: list[TextSegment]) -> str:
    return "".join(segment.before + segment.text + segment.after for segment in segments)


@given(st.text(alphabet=st.sampled_from("ab. !?\n\t,;。、\u2028é犬\"')"), max_size=80), st.integers(1, 20))
def test_segments_join_to_the_text_and_none_is_too_long(text: str, max_tokens: int) -> None:
    segments = split(text, max_tokens, characters)
    assert joined(segments) == text
    assert all(len(segment.text) <= max_tokens for segment in segments)
    assert not any("\n" in segment.text for segment in segments)


@given(st.text(max_size=60), st.integers(1, 20))
def test_segments_of_any_unicode_text_join_to_the_text(text: str, max_tokens: int) -> None:
    assert joined(split(text, max_tokens, characters)) == text


@pytest.mark.parametrize(
    ("text", "max_tokens", "expected"),
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
def test_long_texts_are_split_at_sentences_then_clauses_then_words_then_characters(
    text: str, max_tokens: int, expected: list[str]
) -> None:
    assert [segment.text for segment in split(text, max_tokens, characters)] == expected


def test_lines_are_split_apart_and_blank_lines_are_kept() -> None:
    segments = split("a b\n\n  \nc\r\n", 100, characters)
    assert [segment.text for segment in segments if segment.text] == ["a b", "c"]
    assert joined(segments) == "a b\n\n  \nc\r\n"


def test_the_work_of_splitting_is_linear_in_the_length_of_the_text() -> None:
    """Work is measured by the characters passed to the token counter, not in time."""
    counted = 0

    def count(split_into_sentences: Sequence[str]) -> list[int]:
        nonlocal counted
        counted += sum(map(len, split_into_sentences))
        return characters(split_into_sentences)

    for text in ("." * 20_000, "a" * 20_000, ". " * 10_000, "a, " * 7_000, "".join(random.choices(".a ", k=20_000))):
        counted = 0
        assert joined(split(text, 50, count)) == text
        assert counted < 15 * len(text)


SENTENCES = SourceLengths(sentences=1, common=20, longest=30)


def split_into_sentences(splitter: Splitter, text: str) -> list[str]:
    return [segment.text for segment in splitter.split(text, "sentences", characters) if segment.text]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two.", ["One.", "Two."]),
        ("One sentence of 25 chars.", ["One sentence of 25 chars."]),
        ("  kept  as it is. ", ["  kept  as it is. "]),
        ("A sentence, longer than any, of training.", ["A sentence, longer than any,", "of training."]),
        # Less than twice the longest training line.
        ("thirty-five letters without a clause", ["thirty-five letters without a clause"]),
        (
            "more than sixty letters in a row without anything like a clause",
            ["more than sixty letters in a", "row without anything like a", "clause"],
        ),
        ("今日は。明日は！", ["今日は。", "明日は！"]),
    ],
)
def test_a_line_is_split_to_the_lengths_of_the_training_lines(text: str, expected: list[str]) -> None:
    assert split_into_sentences(Splitter(100, SENTENCES), text) == expected


def test_a_model_trained_on_two_sentences_per_line_gets_two() -> None:
    splitter = Splitter(100, SourceLengths(sentences=2, common=20, longest=30))
    assert split_into_sentences(splitter, "One. Two. Three. Four. Five.") == ["One. Two.", "Three. Four.", "Five."]
    assert split_into_sentences(splitter, "Eleven ch. Twelve char. Two.") == ["Eleven ch.", "Twelve char. Two."]


def test_without_training_lengths_every_sentence_is_a_segment() -> None:
    assert split_into_sentences(Splitter(100), "One. Two! Three?") == ["One.", "Two!", "Three?"]


def test_split_none_keeps_the_text_whole_and_refuses_one_that_is_too_long() -> None:
    assert Splitter(100).split("One. Two.\nThree.", "none", characters) == [TextSegment("", "One. Two.\nThree.", "")]
    assert Splitter(100).split(" \n", "none", characters) == [TextSegment(" \n", "", "")]
    with pytest.raises(InputError, match="a text of 16 tokens is longer than this model's limit of 15"):
        Splitter(15).split("One. Two.\nThree.", "none", characters)


def test_only_sentences_without_a_space_between_them_have_no_space_before() -> None:
    segments = Splitter(8, SENTENCES).split("今日は。明日は！ はい。Donaudampfschifffahrt.", "sentences", characters)
    assert [(segment.text, segment.no_space_before) for segment in segments][:4] == [
        ("今日は。", False),
        ("明日は！", True),
        ("はい。", False),
        ("Donau", True),
    ]
    assert not any(segment.no_space_before for segment in segments[4:])


@given(
    st.text(alphabet=st.sampled_from("ab. !?\n\t,;。、\u2028é犬\"')A「」"), max_size=80),
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 20),
)
def test_segments_join_to_the_text_for_any_training_lengths(
    text: str, sentences: int, common: int, longest: int
) -> None:
    lengths = SourceLengths(sentences, min(common, longest), longest)
    segments = Splitter(30, lengths).split(text, "sentences", characters)
    assert joined(segments) == text
    assert all(len(segment.text) <= min(2 * longest, 30) for segment in segments)
