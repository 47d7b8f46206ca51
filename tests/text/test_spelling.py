import random
import unicodedata
from collections import Counter
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.errors import DataError
from heed.text import lexicon
from heed.text.letter_model import LetterModel
from heed.text.lexicon import MARKS, WORD, Lexicon
from heed.text.source_noise import misspell
from heed.text.spelling import (
    _ADDED,
    _DOUBLED,
    _OMITTED,
    _REPLACED,
    _SWAPPED,
    Correction,
    SpellingCorrector,
    _edit_costs,
)

ANIMALS = ("dog", "horse", "elephant", "crocodile")
PLACES = ("garden", "kitchen", "street", "mountain", "harbour")
TEXTS = [
    f"A small {animal} in London often sleeps in the large {place} near it." for animal in ANIMALS for place in PLACES
] * 3
CORRECT = SpellingCorrector(Lexicon.from_texts(TEXTS))
WORDS = st.text("abc", max_size=6)


@pytest.mark.parametrize(
    ("text", "corrected"),
    [
        (
            "A small horze in London often sleeps in the large gaarden.",
            "A small horse in London often sleeps in the large garden.",
        ),
        ("A small elehpant often slepes in teh moutnian.", "A small elephant often sleeps in the mountain."),
        ("the crcodile  oftne", "the crocodile  often"),
        ("HORZE", "HORSE"),
        ("Crocodlie", "Crocodile"),
        ("A dog in London sleeps.", "A dog in London sleeps."),
        ("A dog in Londno sleeps.", "A dog in Londno sleeps."),  # capitals inside a sentence are names
        ("A dog in the h0use no. 17", "A dog in the h0use no. 17"),
        ("A philosopher discusses jurisprudence.", "A philosopher discusses jurisprudence."),
        ("", ""),
        ("…", "…"),
    ],
)
def test_misspelt_words_become_words_of_the_training_text(text: str, corrected: str) -> None:
    result, corrections = CORRECT(text)
    assert result == corrected
    changed = [pair for pair in zip(text.split(), corrected.split(), strict=True) if pair[0] != pair[1]]
    assert corrections == tuple(Correction(before.strip("."), after.strip(".")) for before, after in changed)


def test_a_word_is_judged_by_its_neighbours() -> None:
    texts = ["they ride a red bus", "they fear a small bug"] * 20
    correct = SpellingCorrector(Lexicon.from_texts(texts))
    assert correct("a red bux")[0] == "a red bus"
    assert correct("a small bux")[0] == "a small bug"


def test_nouns_are_written_as_in_the_training_text_where_capitals_are_not_names() -> None:
    texts = [f"Ein {noun} liegt im {place}." for noun in ("Hund", "Ball", "Stein") for place in ("Garten", "Haus")] * 20
    correct = SpellingCorrector(Lexicon.from_texts(texts))
    assert correct("Ein Hudn liegt im gartenn.")[0] == "Ein Hund liegt im Garten."


@pytest.mark.parametrize(
    "text",
    [
        "See https://sleep.com/smal for the garden.",
        "Write to smal.hors@gardn.org in London.",
        "The file gardn.txt and the folder /gardn.",
        "A small horse, e.g. in a garden.",
        "A small streat(x) in the garden.",
        "STREAT in London often sleeps.",  # an acronym
        "McGarden in the hoRse.",
        "A small n sleeps.",  # any other letter would be as good
    ],
)
def test_what_is_no_word_of_a_sentence_stays(text: str) -> None:
    assert CORRECT(text) == (text, ())


def test_a_capital_in_the_wrong_place_is_a_slip_of_the_finger() -> None:
    assert CORRECT("CRcodile")[0] == "Crocodile"
    correct = SpellingCorrector(Lexicon.from_texts([f"Ein {noun} liegt im Garten." for noun in ("Hund", "Stein")] * 20))
    for misspelt in ("Ein uHnd liegt im Garten.", "Ein nHund liegt im Garten."):
        assert correct(misspelt)[0] == "Ein Hund liegt im Garten."
    assert correct("EUH liegt im ePhone.")[1] == ()


def test_signs_for_words_and_syllables_are_not_spelt() -> None:
    texts = [f"{person} 在 {place} 工作" for person in ("学生", "老师") for place in ("医院", "机场")] * 10
    assert SpellingCorrector(Lexicon.from_texts(texts))("学者 在 机构 工作") == ("学者 在 机构 工作", ())
    texts = [f"{person} {place}에서 일한다" for person in ("학생이", "의사가") for place in ("학교", "병원")] * 10
    assert SpellingCorrector(Lexicon.from_texts(texts))("의자가 공원에서 일한다")[1] == ()


@pytest.mark.parametrize(
    ("texts", "misspelt", "corrected"),
    [
        (["यह किताब अच्छी है", "यह लड़की अच्छी है"], "यह कितब अच्छी है", "यह किताब अच्छी है"),
        (["a cafe\u0301 there"], "a cafe\u0301 there", "a cafe\u0301 there"),
    ],
)
def test_marks_are_parts_of_words(texts: list[str], misspelt: str, corrected: str) -> None:
    assert SpellingCorrector(Lexicon.from_texts(texts * 20))(misspelt)[0] == corrected


def test_words_have_their_vowel_signs_and_accents() -> None:
    for text in (
        "हिन्दी भाषा अच्छी है",
        "cafe\u0301 de\u0301ja\u0300",
        "สวัสดี ครับ",
        "مُحَمَّد",
        "می\u200cخواهم",
        "aujourd’hui",
    ):
        assert WORD.findall(text) == text.split()


def test_all_marks_of_the_basic_plane_are_known() -> None:
    marks = {chr(code) for code in range(0x10000) if unicodedata.category(chr(code))[0] == "M"}
    assert marks <= set(MARKS)


def test_a_lexicon_prunes_its_bigrams_rarely_even_if_none_occurs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = list[int]()
    prune = lexicon._without_rarest

    def counted(bigrams: Counter[tuple[str, str]], most: int) -> Counter[tuple[str, str]]:
        sizes.append(len(bigrams))
        return prune(bigrams, most)

    monkeypatch.setattr(lexicon, "_PRUNED_AT", 1000)
    monkeypatch.setattr(lexicon, "_without_rarest", counted)
    Lexicon.from_texts(f"a{number // 3} b{number // 3}" for number in range(3000))
    assert len(sizes) <= 3000 / 500  # each time half of them leave


def test_a_lexicon_without_words_corrects_nothing() -> None:
    for texts in ([], ["", "… !"]):
        assert SpellingCorrector(Lexicon.from_texts(texts))("a dgo") == ("a dgo", ())


def test_most_misspelt_words_are_corrected() -> None:
    draw, texts = random.Random(1), TEXTS[:20]
    misspelt = [misspell(text, 0.05, draw) for text in texts]
    wrong, remaining = (
        sum(
            word != right
            for text, line in zip(texts, lines, strict=True)
            for right, word in zip(text.split(), line.split(), strict=True)
        )
        for lines in (misspelt, [CORRECT(text)[0] for text in misspelt])
    )
    assert wrong > 20
    assert remaining < wrong / 2


@cache
def naive_cost(word: str, other: str) -> float:
    """The least cost of the edits that misspell `other` as `word`, by the definition."""
    if not word or not other:
        added = naive_cost(word[:-1], "") + (_DOUBLED if word[-2:-1] == word[-1] else _ADDED) if word else 0.0
        return float(added + _OMITTED * len(other))
    cost = min(
        naive_cost(word[:-1], other) + (_DOUBLED if word[-2:-1] == word[-1] else _ADDED),
        naive_cost(word, other[:-1]) + _OMITTED,
        naive_cost(word[:-1], other[:-1]) + _REPLACED * (word[-1] != other[-1]),
    )
    if word[-2:] == other[-2:][::-1] and len(word) > 1 and len(other) > 1:
        cost = min(cost, naive_cost(word[:-2], other[:-2]) + _SWAPPED)
    return float(cost)


@given(WORDS, st.lists(WORDS, min_size=1, max_size=5))
def test_edit_costs_are_those_of_the_definition(word: str, others: list[str]) -> None:
    lengths = np.array([len(other) for other in others])
    letters = np.zeros((len(others), max(lengths.max(), 1)), np.uint32)
    for row, other in zip(letters, others, strict=True):
        row[: len(other)] = [ord(letter) for letter in other]
    expected = [naive_cost(word, other) for other in others]
    assert _edit_costs(word, letters, lengths).tolist() == pytest.approx(expected)


@given(st.lists(st.text("abc xyzÄß.'", max_size=20), max_size=6))
def test_a_lexicon_is_read_as_it_was_written(texts: list[str]) -> None:
    written = Lexicon.from_texts(texts * 2)
    if written.texts:
        assert Lexicon.from_json(written.to_json()) == written


def test_only_the_most_frequent_words_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexicon, "_MAX_WORDS", 2)
    result = Lexicon.from_texts(["c a b a", "a b", "a b"])
    assert result.counts == {"a": 4, "b": 3}
    assert result.bigrams == {("", "a"): 2, ("a", "b"): 3, ("b", ""): 2}
    assert result.share_of_new == 1 / 8


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{}", "texts: Field required"),
        (b"[1]", "should be an object"),
        (Lexicon.from_texts(["a b"] * 2).to_json().replace(b"[2,2]", b"[2,-2]"), "greater than"),
        (Lexicon.from_texts(["a b"] * 2).to_json().replace(b'"times":[', b'"times":[7,'), "do not belong together"),
        (Lexicon.from_texts(["a b"] * 2).to_json().replace(b'"first":[', b'"first":[9,'), "do not belong together"),
    ],
)
def test_a_damaged_lexicon_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Lexicon.from_json(content)


def test_probabilities_of_the_letter_model_sum_to_one() -> None:
    words = ["dog", "door", "good"] * 20
    model = LetterModel(words)
    letters = sorted({*"".join(words), " "})
    for context in ("do", " d", "od", "xx"):
        assert sum(model._probability(context + letter) for letter in letters) == pytest.approx(1, abs=0.01)


def test_words_like_those_of_the_vocabulary_are_more_probable() -> None:
    model = LetterModel(["singing", "ringed", "running", "hanging", "girls", "falls"])
    assert model.log_prob("ringing") > model.log_prob("rniging") > model.log_prob("qxzingz")
