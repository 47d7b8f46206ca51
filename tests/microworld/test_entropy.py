"""The built-in grammar's probabilities and entropy are exact: compared with samples, counts and hand computation."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from functools import cache
from statistics import mean, stdev
from typing import TypeVar

import pytest

from heed.microworld import words
from heed.microworld.corpus import DatasetSplit, Example, is_unseen_combination, split_of
from heed.microworld.entropy import CorpusLanguage, cross_entropy, entropy, log_probability, one_word_per_class
from heed.microworld.grammar import Adjective, Noun, french_sentence, noun_phrase
from heed.microworld.templates import ANTECEDENTS, attribute, sentence
from tests.microworld.derivations import Record, derivations

T = TypeVar("T")
SIDES: tuple[CorpusLanguage, ...] = ("english", "french")


@cache
def random_sentences() -> list[tuple[Example, float]]:
    """20,000 random sentences, each with the log-probability of its derivation."""
    choose = Record(seed=11)
    sentences = []
    for _ in range(20_000):
        choose.start()
        sentences.append((sentence(choose), -math.log(choose.ways)))
    return sentences


def text_of(example: Example, side: CorpusLanguage) -> str:
    return example.source if side == "english" else example.target


@pytest.mark.parametrize("side", SIDES)
def test_the_probability_of_a_sentence_is_that_of_its_derivation(side: CorpusLanguage) -> None:
    for example, log_prob in random_sentences()[:150]:
        assert log_probability(text_of(example, side), side) == pytest.approx(log_prob, abs=1e-9), example


@pytest.mark.parametrize("side", SIDES)
def test_the_entropy_is_the_mean_negative_log_probability_of_random_sentences(side: CorpusLanguage) -> None:
    surprisals = [-log_prob for _, log_prob in random_sentences()]  # one French sentence in 15,000 has two derivations
    error = stdev(surprisals) / math.sqrt(len(surprisals))
    assert error < 0.02
    assert abs(mean(surprisals) - entropy(side)) < 4 * error


def test_no_noun_adjective_or_determiner_changes_how_many_choices_follow() -> None:
    """This is why the entropy may be computed with one word per class."""

    class Shape:
        def __init__(self) -> None:
            self.draw = random.Random(13)
            self.start()

        def start(self) -> None:
            self.options: list[int] = []
            self.chosen: list[object] = []

        def __call__(self, options: Sequence[T], /) -> T:
            choice = self.draw.randrange(len(options))
            self.options.append(len(options))
            self.chosen.append(choice if one_word_per_class(options) == options else None)
            return options[choice]

    choose = Shape()
    seen: dict[tuple[object, ...], list[int]] = {}
    repeated = 0
    for _ in range(20_000):
        choose.start()
        sentence(choose)
        shape = tuple(choose.chosen)
        repeated += shape in seen
        assert seen.setdefault(shape, choose.options) == choose.options
    assert repeated > 10_000


def test_sentence_frequencies_match_their_probabilities() -> None:
    draw, count = random.Random(14), 100_000
    counts = Counter(attribute(draw.choice).target for _ in range(count))
    plants = [
        french_sentence(f"{phrase.french} {be} {form}")
        for noun in words.PLANTS.nouns
        for determiner in words.DEFINITE
        for phrase, verbs, plural in (
            (noun_phrase(determiner, noun), ("est", "était"), False),
            (noun_phrase(determiner, noun, "plural"), ("sont", "étaient"), True),
        )
        for be in (verb_form for verb in verbs for verb_form in (verb, f"ne {verb} pas"))
        for form in (agreeing_by_hand(adjective, noun, plural=plural) for adjective in words.PLANTS.predicates)
    ]
    assert len(set(plants)) == len(plants) == 4 * 3 * 2 * 4 * 7
    expected = [
        count * 12 * math.exp(log_probability(text)) for text in plants
    ]  # one sentence in twelve has an attribute
    assert sum(expected) == pytest.approx(count / 3 / 6)
    chi_square = sum(
        (counts[text] - expected_count) ** 2 / expected_count
        for text, expected_count in zip(plants, expected, strict=True)
    )
    assert abs(chi_square - len(plants)) < 5 * math.sqrt(2 * len(plants))


def agreeing_by_hand(adjective: Adjective, noun: Noun, *, plural: bool) -> str:
    if noun.gender == "masculine":
        return adjective.masculine_plural if plural else adjective.masculine
    return adjective.feminine_plural if plural else adjective.feminine


def test_the_probabilities_of_a_part_of_the_grammar_sum_to_its_own() -> None:
    """All French sentences that begin with Le roi n'entend pas and have no adjective."""
    phrases = [
        noun_phrase(determiner, noun, number)
        for determiner in (*words.DEFINITE, words.NOT_A)
        for noun in words.ANIMALS.nouns
        for number in ("singular", "plural")
    ]
    texts = {french_sentence(f"le roi ne entend pas {phrase.french}") for phrase in phrases}
    assert len(texts) == len(phrases) - 2  # d'ours and de souris are both singular and plural
    king = 1 / 3 * 1 / 3 * 1 / 16 * 1 / 2  # probabilities of no adjective, le, roi, singular
    part = 1 / 12 * 1 / 9 * king * 1 / 4 * 1 / 6  # and of negation, the template, the king, a bare object, entend
    assert sum(math.exp(log_probability(text)) for text in texts) == pytest.approx(part)


def test_probabilities_of_derivations_of_the_same_french_sentence_are_added() -> None:
    bears = ["The king doesn't hear a bear.", "The king doesn't hear any bears."]
    assert {example.target for text in bears for example in derivations(text)} == {"Le roi n'entend pas d'ours."}
    assert math.exp(log_probability("Le roi n'entend pas d'ours.")) == pytest.approx(
        sum(math.exp(log_probability(text, "english")) for text in bears)
    )
    assert log_probability("Le roi n'entend pas d'oie.") == log_probability(bears[0], "english")


def test_french_has_less_entropy_only_where_a_negated_plural_looks_like_its_singular() -> None:
    bears = 1 / 20 * (1 / 4 + 1 / 4 * 1 / 4)  # d'ours, d'ours gris; but de vieil ours and de vieux ours differ
    mice = 1 / 20 * 1 / 4  # de souris; but de souris grise and de souris grises differ
    ambiguous = 1 / 12 * 1 / 9 * 1 / 4 * (bears + mice)  # probabilities of negation, the template, an indefinite object
    assert entropy("english") - entropy("french") == pytest.approx(ambiguous * math.log(2), rel=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        ".",
        "La roi lit le livre.",
        "Le livre lit le roi.",
        "Le roi lit le livre",
        "le roi lit le livre.",
        "Le roi lit le livre. Le roi lit le livre.",
        "Le roi lit le livre rouge.",
        "Le roi ne entend pas le chat.",
        "The king reads the book.",
        "L'animal n'a pas traversé la rue parce qu'il était trop large.",
    ],
)
def test_sentences_outside_the_grammar_have_probability_zero(wrong: str) -> None:
    assert log_probability(wrong) == -math.inf
    assert log_probability("Le roi lit le livre.") > -20
    assert log_probability("Le roi lit le livre.", "english") == -math.inf


def test_cross_entropy_of_a_split_matches_a_sum_over_its_combinations() -> None:
    # Each split with its share of the sentences that are not the famous case.
    parts: tuple[tuple[DatasetSplit, float], ...] = (("train", 0.76), ("test", 0.12))
    for split, others in parts:
        # Of the famous case: the split's share; the mean log of the number of choices, overall and in the split.
        famous, middle, ours = 0.0, 0.0, 0.0
        for ways, example in combinations():
            held_out = 1.0 if is_unseen_combination(example) else 0.05
            share = (1 - held_out if split == "train" else held_out / 2) / ways
            famous += share
            middle += math.log(ways) / ways
            ours += share * math.log(ways)
        # The famous case is a third of every split, so an estimate of its entropy from a sample is accurate enough.
        sample = mean(-log_prob for example, log_prob in random_sentences() if example.antecedent)
        other = (3 * entropy() - sample) / 2
        expected = (famous * (sample - middle) + ours + 2 * others * other) / (famous + 2 * others)
        assert cross_entropy(split) == pytest.approx(expected, abs=5e-4)
        if split == "train":  # the numbers in the module's docstring: memorised sentences, memorised combinations
            assert -math.log((famous + 2 * others) / 3) == pytest.approx(0.27, abs=0.005)
            assert -math.log((famous / 0.95 + 2) / 3) == pytest.approx(0.07, abs=0.005)
    assert cross_entropy("train") < entropy() - 0.003
    assert cross_entropy("test") == cross_entropy("valid") > entropy() + 0.01


def combinations() -> list[tuple[int, Example]]:
    """Every combination of subject, object and adjective of the famous case, with the inverse of its probability."""
    return [
        (
            len(words.HINDRANCES) * len(words.ANIMALS.nouns) * len(hindrance.objects) * 2 * len(adjectives),
            Example(f"It was {adjective.english}.", "", "because", meant, subject.english, goal.english),
        )
        for hindrance in words.HINDRANCES
        for meant, adjectives in zip(ANTECEDENTS, (hindrance.of_the_subject, hindrance.of_the_object), strict=True)
        for adjective in adjectives
        for subject in words.ANIMALS.nouns
        for goal in hindrance.objects
    ]


def test_the_cross_entropy_is_the_mean_negative_log_probability_of_a_split() -> None:
    surprisals = [-log_prob for example, log_prob in random_sentences() if split_of(example) != "train"]
    error = stdev(surprisals) / math.sqrt(len(surprisals))
    assert error < 0.04
    assert abs(mean(surprisals) - cross_entropy("test")) < 4 * error
