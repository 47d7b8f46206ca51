"""The claims on applications: their generated exercises are right, and their verdicts follow from the numbers."""

import random
from collections import Counter
from itertools import islice

import numpy as np
import pytest

from heed.claims import entailment, reading, sentence_vectors
from heed.claims.entailment import Statement, label_of, labelled_pairs
from heed.claims.reading import Event, Exercise, exercises
from heed.claims.result import Panel, Series, Verdict
from heed.claims.sentence_vectors import linear_accuracy, meanings, share_found, word_counts
from heed.microworld import words
from heed.microworld.grammar import Noun, noun_phrase

PEOPLE = {noun.english: noun for noun in words.PEOPLE.nouns}
ANIMALS = {noun.english: noun for noun in words.ANIMALS.nouns}


def test_a_question_is_answered_by_the_sentence_in_which_its_noun_has_the_role() -> None:
    dog = noun_phrase(words.MY, ANIMALS["dog"], before=words.ADJECTIVES["old"])
    queen = noun_phrase(words.THE, PEOPLE["queen"])
    cats = noun_phrase(words.THIS, ANIMALS["cat"], "plural")
    hear = words.VERBS["hear"]
    events = [Event(queen, hear, cats), Event(dog, hear, queen)]
    active, passive = Exercise(events, queen, "subject"), Exercise(events, queen, "object")
    assert active.passage == passive.passage == "The queen hears these cats. My old dog hears the queen."
    assert (active.question, active.answer) == ("Who does the queen hear?", "these cats")
    assert (passive.question, passive.answer) == ("Who hears the queen?", "My old dog")
    assert Exercise(events, cats, "object").source.endswith("Who hears the cats?")
    draw = random.Random(1)
    assert {active.guess(draw) for _ in range(20)} == {"these cats", "My old dog"}
    assert {Exercise(events, cats, "object").guess(draw) for _ in range(20)} == {"The queen"}


@pytest.mark.parametrize("sentences", [1, 2, 5])
def test_every_answer_is_a_span_of_its_passage_and_the_baseline_is_right_in_half_of_the_cases(sentences: int) -> None:
    drawn = list(islice(exercises("test", 1, range(sentences, sentences + 1)), 400))
    for exercise in drawn:
        assert exercise.passage.count(".") == sentences
        assert exercise.answer in exercise.passage
        mentions = sum(exercise.asked in (event.subject, event.object) for event in exercise.events)
        assert mentions == min(sentences, 2)
    draw = random.Random(1)
    right = sum(exercise.guess(draw) == exercise.answer for exercise in drawn) / len(drawn)
    assert right == (1.0 if sentences == 1 else pytest.approx(0.5, abs=0.1))


def test_passages_of_the_test_do_not_occur_in_training() -> None:
    train, test = (
        {exercise.passage for exercise in islice(exercises(split, 1, range(1, 2)), 3000)} for split in ("train", "test")
    )
    assert not train & test


def statement(text: str) -> Statement:
    """The statement of a sentence such as `The queen doesn't see an old black cat.`"""
    tokens = text.rstrip(".").split()
    nouns: dict[str, Noun] = PEOPLE | ANIMALS
    kind = words.PEOPLE if tokens[-1] in PEOPLE else words.ANIMALS
    adjectives = [words.ADJECTIVES[token] for token in tokens if token in words.ADJECTIVES]
    before = next((adjective for adjective in adjectives if adjective in kind.before), None)
    after = next((adjective for adjective in adjectives if adjective in kind.after), None)
    verb = next(verb for verb in words.VERBS.values() if {verb.english, verb.english_singular} & set(tokens))
    made = Statement(nouns[tokens[1]], verb, nouns[tokens[-1]], before, after, "doesn't" in tokens)
    assert made.text == text
    return made


@pytest.mark.parametrize(
    ("premise", "hypothesis", "label"),
    [
        ("The queen sees an old black cat.", "The queen sees a black cat.", "entails"),
        ("The queen sees a black cat.", "The queen sees an old black cat.", "neutral"),
        ("The queen sees a black cat.", "The queen sees a white cat.", "neutral"),
        ("The queen doesn't see a cat.", "The queen doesn't see a black cat.", "entails"),
        ("The queen doesn't see a black cat.", "The queen doesn't see a cat.", "neutral"),
        ("The queen sees a black cat.", "The queen doesn't see a cat.", "contradicts"),
        ("The queen sees a black cat.", "The queen doesn't see a white cat.", "neutral"),
        ("The queen doesn't see a cat.", "The queen sees a black cat.", "contradicts"),
        ("The queen doesn't see a black cat.", "The queen sees a cat.", "neutral"),
        ("The queen sees an old cat.", "The queen hears an old cat.", "neutral"),
        ("The queen sees a cat.", "The king doesn't see a cat.", "neutral"),
        ("The queen sees a cat.", "The cat sees a queen.", "neutral"),
    ],
)
def test_labels_follow_by_logic(premise: str, hypothesis: str, label: str) -> None:
    assert label_of(statement(premise), statement(hypothesis)) == label


def test_a_hypothesis_says_nothing_about_its_label() -> None:
    pairs = list(islice(labelled_pairs("train"), 6000))
    for described in (
        lambda pair: pair.hypothesis.negated,
        lambda pair: len(pair.hypothesis.adjectives),
        lambda pair: pair.hypothesis.verb,
    ):
        counts = Counter((described(pair), pair.label) for pair in pairs)
        totals = Counter(described(pair) for pair in pairs)
        for (value, _), count in counts.items():
            assert count / totals[value] == pytest.approx(1 / 3, abs=0.05)
    assert all(pair.premise != pair.hypothesis and label_of(*pair[1:]) == pair.label for pair in pairs)
    tested = {pair.hypothesis.text for pair in islice(labelled_pairs("test"), 1000)}
    assert not tested & {pair.hypothesis.text for pair in pairs}


def test_four_meanings_have_the_same_words_and_two_forms() -> None:
    drawn = meanings(random.Random(1), 3)
    assert len(drawn) == 12
    for group in (drawn[:4], drawn[4:8], drawn[8:]):
        assert len({each.clause for each in group}) == len({each.relative for each in group}) == 4
        counts = word_counts([each.clause for each in group])
        assert (counts == counts[0]).all()
    king, dog = PEOPLE["king"], ANIMALS["dog"]
    see, old = words.VERBS["see"], words.ADJECTIVES["old"]
    forms = {
        meaning.clause: meaning.relative
        for described in ("subject", "object")
        for subject, goal in ((king, dog), (dog, king))
        for meaning in [sentence_vectors.Meaning(subject, see, goal, old, described)]
    }
    assert forms == {
        "The old king sees the dog.": "The king who sees the dog is old.",
        "The king sees the old dog.": "The dog that the king sees is old.",
        "The old dog sees the king.": "The dog that sees the king is old.",
        "The dog sees the old king.": "The king that the dog sees is old.",
    }


def test_retrieval_finds_the_same_row_and_shares_the_point_of_a_tie() -> None:
    vectors = np.eye(4, dtype=np.float32)
    assert share_found(3 * vectors, vectors) == 1.0
    assert share_found(vectors, vectors[::-1]) == 0.0
    assert share_found(vectors, np.ones_like(vectors)) == 0.25


def test_a_linear_probe_reads_what_is_linear_and_nothing_else() -> None:
    random_vectors = np.random.default_rng(1).normal(size=(600, 8)).astype(np.float32)
    linear = (random_vectors[:, 0] > 0).astype(int)
    product = (random_vectors[:, 0] * random_vectors[:, 1] > 0).astype(int)
    for labels, (lowest, highest) in ((linear, (0.95, 1.0)), (product, (0.35, 0.65))):
        accuracy = linear_accuracy(random_vectors[:400], labels[:400], random_vectors[400:], labels[400:])
        assert lowest <= accuracy <= highest


def panel(**values: list[float]) -> Panel:
    return Panel("x", "y", [Series(name, [1.0], [seeds]) for name, seeds in values.items()])


@pytest.mark.parametrize(
    ("model", "verdict"),
    [([0.98, 0.97], "holds"), ([0.8, 0.81], "holds in part"), ([0.5, 0.52], "does not hold here")],
)
def test_verdicts_on_reading_and_entailment_follow_from_the_numbers(model: list[float], verdict: Verdict) -> None:
    guessed = [0.5, 0.51]
    answers = panel(**{reading.TRANSFORMER: model, reading.BASELINE: guessed})
    assert reading.judge([answers])[0] == verdict
    baselines = {entailment.HYPOTHESIS: guessed, entailment.MAJORITY: [0.33, 0.33]}
    labels = panel(**{entailment.PRETRAINED: model, entailment.SCRATCH: [0.9, 0.9], **baselines})
    found, finding = entailment.judge([labels])
    assert found == verdict
    assert "90.0% without; with the hypothesis only 50.5%, with the most frequent label 33.0%" in finding


@pytest.mark.parametrize(
    ("retrieved", "probed", "verdict"),
    [(0.9, 0.9, "holds"), (0.1, 0.9, "holds in part"), (0.9, 0.4, "holds in part"), (0.1, 0.4, "does not hold here")],
)
def test_the_verdict_on_sentence_embeddings_needs_retrieval_and_probe(
    retrieved: float, probed: float, verdict: Verdict
) -> None:
    names, baselines = (sentence_vectors.UNTRAINED, sentence_vectors.COUNTS), [0.4, 0.41]
    panels = [
        panel(**{sentence_vectors.TRAINED: [value, value], **dict.fromkeys(names, baselines)})
        for value in (retrieved, probed)
    ]
    found, finding = sentence_vectors.judge(panels)
    assert found == verdict
    assert f"the same meaning in {retrieved:.0%} of the cases" in finding
