"""Pairs of words, found in parallel text."""

import random

from heed.text.corpus import Pair
from heed.text.normalization import TextStyle, text_style
from heed.text.word_pairs import word_pairs, written_as
from tests.text.word_sentences import WORDS, sentences


def test_words_that_occur_together_are_pairs_in_the_form_they_have_inside_sentences() -> None:
    found = dict(word_pairs(sentences(200)))
    assert {word: found[word] for word in WORDS} == WORDS


def test_rare_words_and_words_without_a_clear_translation_are_left_out() -> None:
    pairs = [*sentences(200), Pair("A zebra.", "Ein Zebra.", 0)]
    assert "zebra" not in dict(word_pairs(pairs))
    unrelated = [Pair(f"it {number % 7}", f"es {number % 5}", 0) for number in range(100)]
    assert dict(word_pairs(unrelated)) == {"it": "es"}
    assert word_pairs([]) == []


def test_a_very_long_pair_hides_no_others() -> None:
    document = Pair("word " * 4000, "Wort " * 4000, 0)
    assert word_pairs([document, *sentences(200)]) == word_pairs(sentences(200)) != []


def test_a_word_is_written_as_the_sentences_are() -> None:
    assert written_as(text_style(["A dog runs.", "The cat sits."]), "red") == ("red.", "Red.")
    assert written_as(text_style(["a dog runs .", "the cat sits ."]), "red") == ("red .", "red .")
    assert written_as(TextStyle(0, 0, 0, 1), "a") == ("a", "A")


def test_vowel_signs_do_not_break_words() -> None:
    words = {"पानी": "water", "किताब": "book", "लड़की": "girl", "बिल्ली": "cat", "हिन्दी": "Hindi", "स्कूल": "school"}
    draw = random.Random(1)
    chosen = [draw.sample(list(words), 3) for _ in range(100)]
    found = word_pairs(
        Pair(f"{' '.join(sources)}।", " ".join(words[word] for word in sources), 0) for sources in chosen
    )
    assert dict(found) == words
