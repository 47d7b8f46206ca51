import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.text.normalization import NormalizedText, Normalizer, TextStyle, text_style

SENTENCES = TextStyle(capitals=0.0, title=0.0, spaces=0.0, initial=1.0)
LOWERCASED = TextStyle(capitals=0.0, title=0.0, spaces=0.0, initial=0.0)


@pytest.mark.parametrize(
    ("text", "normalized", "case"),
    [
        ("A MAN IN A BLUE SHIRT.", "A man in a blue shirt.", "capitals"),
        ("TWO DOGS, 3 CATS", "Two dogs, 3 cats", "capitals"),
        ("A Man In A Blue T-shirt.", "A man in a blue t-shirt.", "title"),
        ("NASA And McDonald Open A Shop", "NASA and McDonald open a shop", "title"),
        ("DON'T RUN", "Don't run", "capitals"),
        ("A man in a blue shirt.", "A man in a blue shirt.", "as is"),
        ("NASA", "NASA", "as is"),
        ("John Smith", "John Smith", "as is"),
        ("a man in a blue shirt", "a man in a blue shirt", "as is"),
        ("The Lord of the Rings is a book", "The Lord of the Rings is a book", "as is"),
        ("三只狗 在 公园", "三只狗 在 公园", "as is"),
        ("123 456", "123 456", "as is"),
        ("", "", "as is"),
    ],
)
def test_capitals_and_title_case_become_sentence_case(text: str, normalized: str, case: str) -> None:
    result = Normalizer(SENTENCES)(text)
    assert (result.text, result.case) == (normalized, case)
    assert result.is_changed == (text != normalized)


def test_spaces_are_collapsed_inside_and_kept_around_the_translation() -> None:
    result = Normalizer(SENTENCES)("  A  dog \t runs.\t")
    assert result.text == "A dog runs."
    assert result.restore("Ein Hund rennt.") == "  Ein Hund rennt.\t"


def test_the_translation_gets_the_case_of_the_text() -> None:
    assert Normalizer(SENTENCES)("A DOG RUNS.").restore("Ein weißer Hund läuft.") == "EIN WEIẞER HUND LÄUFT."
    assert Normalizer(SENTENCES)("A Dog Runs Away.").restore("ein Hund rennt's weg") == "Ein Hund Rennt's Weg"


def test_sentence_case_begins_as_the_training_text_does() -> None:
    assert Normalizer(LOWERCASED)("A MAN RUNS").text == "a man runs"


@pytest.mark.parametrize("style", [None, TextStyle(capitals=0.2, title=0.2, spaces=0.2, initial=0.5)])
@pytest.mark.parametrize("text", ["A MAN RUNS", "A Man Runs Away", "a  man runs "])
def test_a_style_that_the_training_text_has_is_not_changed(style: TextStyle | None, text: str) -> None:
    assert Normalizer(style)(text) == NormalizedText(text)


@given(st.text())
def test_only_case_and_spaces_change(text: str) -> None:
    result = Normalizer(SENTENCES)(text)
    assert text.startswith(result.before)
    assert text.endswith(result.after)
    if result.case == "as is":
        assert result.text.split() == text.split()
    assert result.is_changed or result.text == text


STOPPED = TextStyle(capitals=0.0, title=0.0, spaces=0.0, initial=1.0, stop=".")


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("A man in a blue shirt", "A man in a blue shirt."),
        ("Dog", "Dog."),
        ("in 1999 ", "in 1999."),
        ("A MAN RUNS", "A man runs."),
        ("A man runs.", "A man runs."),
        ("A man runs!", "A man runs!"),
        ("A man runs:", "A man runs:"),
        ("", ""),
    ],
)
def test_a_text_without_a_stop_gets_one_if_nearly_all_training_sources_have_it(text: str, normalized: str) -> None:
    assert Normalizer(STOPPED)(text).text == normalized
    assert Normalizer(SENTENCES)(text).stop == ""


@pytest.mark.parametrize("translation", ["Ein Hund.", "Ein Hund .", "Ein Hund。", "Ein Hund"])
def test_the_translation_of_a_text_without_a_stop_has_none(translation: str) -> None:
    assert Normalizer(STOPPED)("a dog").restore(translation) == "Ein Hund"
    assert Normalizer(STOPPED)(" A DOG\t").restore(translation) == " EIN HUND\t"
    assert Normalizer(STOPPED)("a dog.").restore(translation) == translation
    assert Normalizer(STOPPED)("a dog").restore("Ein Hund!") == "Ein Hund!"


@pytest.mark.parametrize(
    ("texts", "stop"),
    [
        (["A dog."] * 9 + ["A cat"], "."),
        (["A dog."] * 8 + ["A cat"] * 2, ""),
        (["a dog ."] * 10, " ."),
        (["狗。"] * 10, "。"),
        (["A dog!"] * 10, ""),
        ([], ""),
    ],
)
def test_the_usual_stop_is_the_one_of_nine_in_ten_texts(texts: list[str], stop: str) -> None:
    assert text_style(texts).stop == stop


@pytest.mark.parametrize(("stored", "stop"), [(".", "."), (" .", " ."), (None, ""), (3, ""), ("word", "")])
def test_only_a_stop_is_read_from_a_model_folder_as_one(stored: object, stop: str) -> None:
    style = TextStyle.from_json({"capitals": 0, "title": 0, "spaces": 0, "initial": 1, "stop": stored})
    assert style is not None
    assert style.stop == stop


def test_the_style_of_texts_is_the_share_of_each() -> None:
    style = text_style(["A DOG RUNS", "A Dog Runs Away", "a  dog", "A dog runs."])
    assert style == TextStyle(capitals=0.25, title=0.25, spaces=0.25, initial=0.75)
    assert TextStyle.from_json(style.to_json()) == style


@pytest.mark.parametrize(
    "record", [None, 3, {}, {"capitals": 0.1}, {"capitals": "a", "title": 0, "spaces": 0, "initial": 0}]
)
def test_a_missing_or_invalid_style_is_none(record: object) -> None:
    assert TextStyle.from_json(record) is None


def test_a_text_that_ends_in_a_vowel_sign_gets_a_final_stop() -> None:
    assert Normalizer(text_style(["यह अच्छी है।"]))("नमस्ते").text == "नमस्ते।"


def test_a_title_has_no_capital_after_a_combining_accent() -> None:
    assert (
        NormalizedText("", case="title").restore_case("e\u0301cole de\u0301ja\u0300") == "E\u0301cole De\u0301ja\u0300"
    )
