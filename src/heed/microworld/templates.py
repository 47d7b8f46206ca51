"""Sentence templates of the built-in corpus: one function per grammatical phenomenon.

Every random decision is one call of `choose(options)`, which returns one of finitely many options; there is no
rejection sampling. A sentence has exactly one derivation, so if `choose` draws uniformly, the probability of a sentence
is the product of 1 / len(options) over its choices, and a `choose` that iterates over all options enumerates the
language.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from heed.microworld import words
from heed.microworld.grammar import (
    NUMBERS,
    Determiner,
    Number,
    Phrase,
    agreeing,
    auxiliary,
    english_present,
    english_sentence,
    french_present,
    french_sentence,
    noun_phrase,
    object_pronoun,
    participle,
    subject_pronoun,
)

T = TypeVar("T")
Antecedent = Literal["subject", "object"]

ANTECEDENTS: tuple[Antecedent, ...] = ("subject", "object")
ANY = (*words.DEFINITE, words.A)
THINGS = tuple(scene.objects for scene in words.SCENES_OF_THINGS)
NOUN_CLASSES = ((words.PEOPLE,), (words.ANIMALS,), THINGS)
DEGREES = (("too", "trop"), ("very", "très"))
PLACES = (("near", "près de"), ("behind", "derrière"), ("in front of", "devant"))
BE: dict[tuple[str, Number], tuple[str, str]] = {
    ("present", "singular"): ("is", "est"),
    ("present", "plural"): ("are", "sont"),
    ("past", "singular"): ("was", "était"),
    ("past", "plural"): ("were", "étaient"),
}


class Chooser(Protocol):
    """Returns one of the options: the only source of randomness in the corpus."""

    def __call__(self, options: Sequence[T], /) -> T: ...


@dataclass(frozen=True)
class Example:
    """A sentence pair and its template; the last three fields are set for pronoun sentences (`because it was`) only."""

    source: str
    target: str
    rule: str
    antecedent: Antecedent | None = None  # of `it`
    subject: str | None = None
    object: str | None = None


def sentence(choose: Chooser) -> Example:
    """A random sentence: one in three is a pronoun sentence."""
    return choose(choose(TEMPLATES))(choose)


def because(choose: Chooser) -> Example:
    """The animal didn't cross the street because it was too tired: the pronoun sentence."""
    hindrance = choose(words.HINDRANCES)
    subject = decorated(choose, words.ANIMALS, words.DEFINITE, ("singular",))
    goal = noun_phrase(choose((words.THE, words.THIS)), choose(hindrance.objects))
    antecedent = choose(ANTECEDENTS)
    noun = subject.noun if antecedent == "subject" else goal.noun
    adjective = choose(hindrance.of_the_subject if antecedent == "subject" else hindrance.of_the_object)
    degree, french_degree = choose(DEGREES)
    verb = hindrance.verb
    english = f"{subject.english} didn't {verb.english} {goal.english} because it was {degree} {adjective.english}"
    french = (
        f"{subject.french} ne {auxiliary(verb, 'singular')} pas {participle(verb, subject)} {verb.preposition} "
        f"{goal.french} parce que {subject_pronoun(noun, 'singular')} était {french_degree} "
        f"{agreeing(adjective, noun, 'singular')}"
    )
    source, target = english_sentence(english), french_sentence(french)
    return Example(source, target, "because", antecedent, subject.noun.english, goal.noun.english)


def plain(choose: Chooser) -> Example:
    """The woman buys a red car."""
    scene = choose(words.SCENES)
    subject, goal = decorated(choose, scene.subjects, ANY), decorated(choose, scene.objects, ANY)
    verb = choose((*scene.verbs, *scene.owning))
    return _example(
        "plain",
        f"{subject.english} {english_present(verb, subject.number)} {goal.english}",
        f"{subject.french} {french_present(verb, subject.number)} {goal.french}",
    )


def negation(choose: Chooser) -> Example:
    """The woman doesn't buy a red car: un, une and des become de."""
    scene = choose(words.SCENES)
    subject = decorated(choose, scene.subjects, words.DEFINITE)
    goal = decorated(choose, scene.objects, (*words.DEFINITE, words.NOT_A))
    verb = choose((*scene.verbs, *scene.owning))
    return _example(
        "negation",
        f"{subject.english} {_dont(subject.number)} {verb.english} {goal.english}",
        f"{subject.french} ne {french_present(verb, subject.number)} pas {goal.french}",
    )


def past(choose: Chooser) -> Example:
    """The woman bought this car, or didn't buy it: passé composé."""
    scene = choose(words.SCENES)
    negative = choose((False, True))
    subject = bare(choose, scene.subjects, words.DEFINITE)
    goal = decorated(choose, scene.objects, words.DEFINITE if negative else ANY)
    # `The men read the book` could be present or past.
    verb = choose(scene.verbs if negative else tuple(verb for verb in scene.verbs if verb.english_past != verb.english))
    did, a = verb.english_past, auxiliary(verb, subject.number)
    if negative:
        did, a = f"didn't {verb.english}", _ne_pas(a)
    return _example(
        "past",
        f"{subject.english} {did} {goal.english}",
        f"{subject.french} {a} {participle(verb, subject)} {goal.french}",
    )


def attribute(choose: Chooser) -> Example:
    """These cars weren't expensive."""
    kind = choose(choose(NOUN_CLASSES))
    subject = bare(choose, kind, words.DEFINITE)
    be, est = BE[choose(("present", "past")), subject.number]
    adjective = choose(kind.predicates)
    if choose((False, True)):
        be, est = f"{be}n't", _ne_pas(est)
    return _example(
        "attribute",
        f"{subject.english} {be} {adjective.english}",
        f"{subject.french} {est} {agreeing(adjective, subject.noun, subject.number)}",
    )


def pronoun(choose: Chooser) -> Example:
    """The woman has a red car and she loves it, or but she doesn't buy it."""
    scene = choose(words.SCENES_OF_THINGS)
    subject, goal = bare(choose, scene.subjects, words.DEFINITE), decorated(choose, scene.objects, ANY)
    first = choose((words.HAVE, words.VERBS["see"], words.VERBS["find"]))
    second = choose((words.LOVE, words.HATE, *(verb for verb in scene.verbs if verb != first)))
    he, il = _english_subject(subject), subject_pronoun(subject.noun, subject.number)
    it, le = _english_object(goal), object_pronoun(goal.noun, goal.number)
    present = french_present(second, subject.number)
    if choose((False, True)):
        end = f"but {he} {_dont(subject.number)} {second.english} {it}"
        french_end = f"mais {il} ne {le} {present} pas"
    else:
        end = f"and {he} {english_present(second, subject.number)} {it}"
        french_end = f"et {il} {le} {present}"
    return _example(
        "object-pronoun",
        f"{subject.english} {english_present(first, subject.number)} {goal.english} {end}",
        f"{subject.french} {french_present(first, subject.number)} {goal.french} {french_end}",
    )


def relative_subject(choose: Chooser) -> Example:
    """The girl who reads the book is happy: qui."""
    scene = choose(words.SCENES)
    subject, goal = bare(choose, scene.subjects, words.DEFINITE), bare(choose, scene.objects, ANY)
    verb = choose((*scene.verbs, *scene.owning))
    be, est = BE["present", subject.number]
    adjective = choose(scene.subjects.predicates)
    relative = "who" if scene.subjects is words.PEOPLE else "that"
    return _example(
        "relative-subject",
        f"{subject.english} {relative} {english_present(verb, subject.number)} {goal.english} {be} {adjective.english}",
        f"{subject.french} qui {french_present(verb, subject.number)} {goal.french} {est} "
        f"{agreeing(adjective, subject.noun, subject.number)}",
    )


def relative_object(choose: Chooser) -> Example:
    """The book that the girl reads is old: que."""
    scene = choose(words.SCENES)
    subject, goal = bare(choose, scene.subjects, ANY), bare(choose, scene.objects, words.DEFINITE)
    verb = choose((*scene.verbs, words.LOVE))
    be, est = BE["present", goal.number]
    adjective = choose(scene.objects.predicates)
    return _example(
        "relative-object",
        f"{goal.english} that {subject.english} {english_present(verb, subject.number)} {be} {adjective.english}",
        f"{goal.french} que {subject.french} {french_present(verb, subject.number)} {est} "
        f"{agreeing(adjective, goal.noun, goal.number)}",
    )


def possession(choose: Chooser) -> Example:
    """The king's house is old: la maison du roi."""
    owner = bare(choose, words.PEOPLE, words.DEFINITE, ("singular",))
    kind = choose(THINGS)
    owned = bare(choose, kind, (words.THE,))
    be, est = BE[choose(("present", "past")), owned.number]
    adjective = choose(kind.predicates)
    return _example(
        "possession",
        f"{owner.english}'s {owned.english.removeprefix('the ')} {be} {adjective.english}",
        f"{owned.french} de {owner.french} {est} {agreeing(adjective, owned.noun, owned.number)}",
    )


def giving(choose: Chooser) -> Example:
    """The queen gives a letter to the boys: aux garçons."""
    giver, gift = bare(choose, words.PEOPLE, words.DEFINITE), bare(choose, choose(words.GIFTS), ANY)
    others = tuple(noun for noun in words.PEOPLE.nouns if noun != giver.noun)
    taker = noun_phrase(choose(words.DEFINITE), choose(others), choose(NUMBERS))
    verb = choose(words.GIVING)
    return _example(
        "giving",
        f"{giver.english} {english_present(verb, giver.number)} {gift.english} to {taker.english}",
        f"{giver.french} {french_present(verb, giver.number)} {gift.french} à {taker.french}",
    )


def place(choose: Chooser) -> Example:
    """The dog sleeps near the castle: près du château."""
    subject = decorated(choose, choose((words.PEOPLE, words.ANIMALS)), words.DEFINITE)
    verb = choose(words.INTRANSITIVE)
    where, french_where = choose(PLACES)
    landmark = bare(choose, choose((words.BUILDINGS, words.PLANTS)), words.DEFINITE)
    does, dort = english_present(verb, subject.number), french_present(verb, subject.number)
    if choose((False, True)):
        does, dort = f"{_dont(subject.number)} {verb.english}", _ne_pas(dort)
    return _example(
        "place",
        f"{subject.english} {does} {where} {landmark.english}",
        f"{subject.french} {dort} {french_where} {landmark.french}",
    )


TEMPLATES: tuple[tuple[Callable[[Chooser], Example], ...], ...] = (
    (because,),
    (plain, negation, past, attribute),
    (pronoun, relative_subject, relative_object, possession, giving, place),
)


def bare(
    choose: Chooser, kind: words.NounClass, determiners: Sequence[Determiner], numbers: Sequence[Number] = NUMBERS
) -> Phrase:
    """A determiner and a noun."""
    return noun_phrase(choose(determiners), choose(kind.nouns), choose(numbers))


def decorated(
    choose: Chooser, kind: words.NounClass, determiners: Sequence[Determiner], numbers: Sequence[Number] = NUMBERS
) -> Phrase:
    """A determiner and a noun with up to two adjectives, of which the second is a colour."""
    adjectives = choose(("none", "before", "after", "both") if kind.colours else ("none", "before", "after"))
    before = choose(kind.before) if adjectives in ("before", "both") else None
    after = None
    if adjectives in ("after", "both"):
        after = choose(kind.after if adjectives == "after" else kind.colours)
    return noun_phrase(choose(determiners), choose(kind.nouns), choose(numbers), before, after)


def _example(rule: str, english: str, french: str) -> Example:
    return Example(english_sentence(english), french_sentence(french), rule)


def _ne_pas(verb: str) -> str:
    return f"ne {verb} pas"


def _dont(number: Number) -> str:
    return "doesn't" if number == "singular" else "don't"


def _english_subject(phrase: Phrase) -> str:
    if phrase.number == "plural":
        return "they"
    return "he" if phrase.noun.gender == "masculine" else "she"


def _english_object(phrase: Phrase) -> str:
    return "it" if phrase.number == "singular" else "them"
