"""The built-in corpus: English determines French, splits are disjoint, the famous case is balanced."""

import random
import re
from collections import Counter
from functools import cache
from itertools import islice
from typing import cast

import pytest

from heed.errors import ConfigError, DataError
from heed.microworld import words
from heed.microworld.corpus import (
    DatasetSplit,
    Example,
    antecedents,
    corpus,
    examples,
    held_out_share,
    is_unseen_combination,
    pronoun_is_right,
    split_of,
)
from heed.microworld.templates import TEMPLATES, sentence
from tests.microworld.derivations import Record, derivations

SPLITS: tuple[DatasetSplit, ...] = ("train", "valid", "test")


@cache
def sample(split: DatasetSplit, count: int) -> list[Example]:
    return corpus(split, count, seed=1)


def famous(split: DatasetSplit, count: int) -> list[Example]:
    return [example for example in sample(split, count) if example.rule == "because"]


def word_forms(text: str) -> list[str]:
    return text.rstrip(".").lower().replace("'", "' ").split()


def test_every_draw_of_a_sentence_is_the_same_derivation_and_the_same_french() -> None:
    choose = Record(seed=2)
    seen: dict[str, tuple[list[int], str]] = {}
    for _ in range(100_000):
        choose.start()
        example = sentence(choose)
        assert seen.setdefault(example.source, (choose.path, example.target)) == (choose.path, example.target)


def test_the_grammar_has_more_than_a_hundred_million_sentences() -> None:
    # The product of the numbers of options along a random derivation is, on average, the number of derivations (Knuth),
    # and each sentence has one.
    choose = Record(seed=3)
    count = 0.0
    for template in [template for group in TEMPLATES for template in group]:
        for _ in range(300):
            choose.start()
            template(choose)
            count += choose.ways / 300
    assert 1e8 < count < 1e9


def test_a_stream_depends_on_its_split_and_seed_only() -> None:
    for split in SPLITS:
        once, again, other = (list(islice(examples(split, seed), 100)) for seed in (5, 5, 6))
        assert once == again != other
    assert corpus("valid", 50, seed=4) == corpus("valid", 100, seed=4)[:50]


def test_a_corpus_has_as_many_different_sentences_as_asked_for() -> None:
    assert len({example.source for example in sample("train", 20_000)}) == 20_000


def test_splits_share_no_sentence() -> None:
    for split in SPLITS:
        assert {split_of(example) for example in sample(split, 2000)} == {split}
    train, valid, test = ({example.source for example in sample(split, 2000)} for split in SPLITS)
    assert not train & (valid | test)
    assert not valid & test


def test_held_out_combinations_never_occur_in_training_and_are_most_of_the_famous_case_elsewhere() -> None:
    assert not any(is_unseen_combination(example) for example in famous("train", 20_000))
    for split in SPLITS[1:]:
        held_out = famous(split, 2000)
        assert 0.7 < sum(map(is_unseen_combination, held_out)) / len(held_out) < 0.95
    choose = Record(seed=7)
    examples = [example for example in (sentence(choose) for _ in range(9000)) if example.antecedent]
    assert 0.17 < sum(map(is_unseen_combination, examples)) / len(examples) < 0.23


def test_the_two_famous_sentences_are_never_trained_on() -> None:
    for adjective in ("tired", "wide"):
        (example,) = derivations(f"The animal didn't cross the street because it was too {adjective}.")
        assert is_unseen_combination(example)
        assert split_of(example) != "train"


def test_training_shows_every_word_of_the_test_many_times() -> None:
    for side in ("source", "target"):
        training_counts = Counter(
            word for example in sample("train", 20_000) for word in word_forms(getattr(example, side))
        )
        test_words = {word for example in sample("test", 2000) for word in word_forms(getattr(example, side))}
        assert 300 < len(training_counts) < 500
        assert min(training_counts[word] for word in test_words) >= 8


@pytest.mark.parametrize("split", SPLITS)
def test_one_sentence_in_three_is_the_famous_case_balanced_in_antecedent_and_pronoun(split: DatasetSplit) -> None:
    examples = famous(split, 2000)
    assert 0.28 < len(examples) / 2000 < 0.39
    kinds = Counter((example.antecedent, "parce qu'elle" in example.target) for example in examples)
    assert len(kinds) == 4
    assert all(0.2 < count / len(examples) < 0.3 for count in kinds.values())


def test_genders_are_even_and_no_adjective_fits_both_antecedents() -> None:
    for nouns in [words.ANIMALS.nouns, *(hindrance.objects for hindrance in words.HINDRANCES)]:
        assert 2 * sum(noun.gender == "feminine" for noun in nouns) == len(nouns)
    of_subjects = {adjective for hindrance in words.HINDRANCES for adjective in hindrance.of_the_subject}
    assert not of_subjects & {adjective for hindrance in words.HINDRANCES for adjective in hindrance.of_the_object}


def test_the_famous_case_records_rule_antecedent_subject_and_object() -> None:
    (example,) = derivations("This old dog didn't eat the pizza because it was too salty.")
    assert (example.rule, example.antecedent, example.subject, example.object) == ("because", "object", "dog", "pizza")


def test_the_splits_of_random_sentences_match_the_held_out_share() -> None:
    choose = random.Random(8).choice
    examples = [sentence(choose) for _ in range(20_000)]
    for share in (0.05, 0.24):
        held_out = [split_of(example) for example in examples if held_out_share(example) == share]
        assert len(held_out) > 4000
        for split in SPLITS[1:]:
            assert held_out.count(split) / len(held_out) == pytest.approx(share / 2, abs=0.012)
    assert {split_of(example) for example in examples if held_out_share(example) == 1} == {"valid", "test"}


@pytest.mark.parametrize("split", SPLITS)
def test_antecedents_are_right_and_half_of_them_are_subjects(split: DatasetSplit) -> None:
    examples = antecedents(split, 500, seed=3)
    assert 0.42 < sum(label == "subject" for label, _ in examples) / 500 < 0.58
    for label, text in examples[:30]:
        (example,) = derivations(text)
        assert (example.antecedent, split_of(example)) == (label, split)
        assert is_unseen_combination(example) == (split != "train")
    assert examples[:100] == antecedents(split, 100, seed=3) != antecedents(split, 100, seed=4)


def test_antecedents_never_repeat_a_sentence() -> None:
    sources = (example.source for example in examples("train", seed=3) if example.antecedent)
    assert len(set(islice(sources, 5000))) < 5000
    assert len({text for _, text in antecedents("train", 5000, seed=3)}) == 5000


def test_sentences_have_a_capital_letter_spaces_and_a_full_stop() -> None:
    for example in sample("train", 20_000):
        assert re.fullmatch(r"[A-Z][a-z']*( [a-z']+){3,12}\.", example.source)
        assert re.fullmatch(r"[A-Z][a-zà-öø-ÿœ']*( [a-zà-öø-ÿœ']+){2,15}\.", example.target)


def test_every_word_that_elides_before_a_vowel_is_elided() -> None:
    vowel = "[aeiouâéèêîôœ]|homme|histoire|hôtel|heureu"
    unelided = re.compile(rf"\b(le|la|ne|de|que|ce|ma|beau|nouveau) ({vowel})|\b(de|à) les? ", re.IGNORECASE)
    assert [example.target for example in sample("train", 20_000) if unelided.search(example.target)] == []
    assert [example.source for example in sample("train", 20_000) if re.search(r"\ba [aeiou]", example.source)] == []


def test_a_pronoun_is_judged_whatever_the_rest_of_the_translation() -> None:
    (example,) = derivations("The animal didn't cross the street because it was too wide.")
    assert pronoun_is_right(example, example.target)
    assert pronoun_is_right(example, "L'animal a traversé la rue parce qu'elle était trop longue.")
    assert pronoun_is_right(example, "parce qu’elle était large")
    assert not pronoun_is_right(example, "L'animal n'a pas traversé la rue parce qu'il était trop large.")
    assert not pronoun_is_right(example, "Elle est large.")


def test_a_pronoun_is_judged_in_the_famous_case_only() -> None:
    (example,) = derivations("The goat is white.")
    with pytest.raises(DataError, match=r"found 'The goat is white\.'"):
        pronoun_is_right(example, example.target)


def test_an_unknown_split_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="unknown split 'dev': expected one of train, valid, test"):
        examples(cast("DatasetSplit", "dev"), seed=0)
