"""How likely a sentence of the built-in corpus is, and how much there is to know of one: the truth a model is held to.

Enters: a sentence, or the name of a language. Leaves: log-probabilities and entropies, exact, in nats a sentence.

The grammar's own distribution p is meant: that of `sentence` when `choose` draws evenly. `examples` draws from it and
keeps the sentences of one split, which a checksum of the English sentence decides. No model can know that checksum, so
the most there is to learn from the training split is p itself, and the held-out sentences H are measured against p:

    cross_entropy("test", "french")                      what p needs for a sentence of that split, on average
    -mean(log_probability(text) for text in sentences)   what it needs for these very sentences: compare a model to this

A model m needs less only if it gives held-out sentences more probability than the grammar itself does: on average over
H, log m - log p is at most log(m(H) / p(H)) (Jensen's inequality), and training, which never shows one of H, can only
take probability away from them. So a model comes close from above, but for the luck of the sample: the averages over n
sentences differ by chance by the standard deviation of log m - log p, divided by the square root of n. What to mind:

- On the training split a model may need less than p does, by up to -log p(train), 0.27 nats: there it can learn what is
  left out. Most of that means to know every sentence by heart; to know which combinations of the famous case are never
  there is worth 0.07 nats of it, and costs on H.
- `corpus` leaves repetitions out, so in it frequent sentences are rarer than they are. Let a language model learn from
  `examples`, and test it on `examples`.
- A model's sentence ends, too: the end is part of what it must predict. Compare sums over sentences, not over tokens.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from heed.microworld import words
from heed.microworld.corpus import DatasetSplit, held_out_share
from heed.microworld.grammar import Adjective, Determiner, Noun, Phrase, Verb, english_words, french_words
from heed.microworld.templates import (
    ANTECEDENTS,
    TEMPLATES,
    Chooser,
    Example,
    because,
    decorated,
    negation,
    sentence,
)

T = TypeVar("T")
CorpusLanguage = Literal["english", "french"]
Template = Callable[[Chooser], Example]
LexiconEntry = Noun | Adjective | Determiner | Verb


class Admitted(Protocol):
    """Which of a choice's options are looked into."""

    def __call__(self, options: Sequence[T], /) -> Sequence[T]:
        """Some of the options, all of them or none."""


def log_probability(text: str, side: CorpusLanguage = "french") -> float:
    """The logarithm of a sentence's probability under the grammar, all its derivations summed; -inf if it has none."""
    known = english_words(text) if side == "english" else french_words(text)

    def fitting(options: Sequence[T]) -> Sequence[T]:
        return [option for option in options if _fits(option, known, side)]

    found = [
        one.log_probability
        for one in _derivations(sentence, fitting)
        if text == (one.made.source if side == "english" else one.made.target)
    ]
    return math.log(sum(map(math.exp, found))) if found else -math.inf


def entropy(side: CorpusLanguage = "french") -> float:
    """The entropy of the grammar: what a sentence of all it can say needs on average."""
    return sum(chance * (_entropy(template, side) - math.log(chance)) for template, chance in _templates())


@cache
def cross_entropy(split: DatasetSplit, side: CorpusLanguage = "french") -> float:
    """What a split's sentences need on average under the grammar as a whole: -log p, averaged over that split.

    For the held-out splits a little more than the entropy, since which combinations of the famous case are held out,
    and how many, is no accident of single sentences. The checksums of sentences are taken to fall evenly.
    """
    total = needed = 0.0
    for template, chance in _templates():
        average = _entropy(template, side) - math.log(chance)
        found = list(_derivations(template, _combinations if template is because else one_word_of_a_kind))
        middle = sum(one.share * one.log_probability for one in found)
        for one in found:
            held_out = held_out_share(one.made)
            share = chance * one.share * (1 - held_out if split == "train" else held_out)
            total += share
            needed += share * (average + middle - one.log_probability)
    return needed / total


def one_word_of_a_kind(options: Sequence[T]) -> Sequence[T]:
    """One noun, adjective or determiner for all: whichever it is, as many choices of as many options follow.

    Not one verb for all: whether `find` can come second in a sentence depends on which came first.
    """
    return options[:1] if isinstance(options[0], Noun | Adjective | Determiner) else options


def _templates() -> list[tuple[Template, float]]:
    """Every template and how often it is drawn."""
    return [(template, 1 / len(TEMPLATES) / len(group)) for group in TEMPLATES for template in group]


@cache
def _entropy(template: Template, side: CorpusLanguage) -> float:
    """The entropy of a template's sentences.

    An English sentence has one derivation, so its entropy is the derivations'. So has a French one, unless it negates a
    noun whose plural looks like its singular (`n'entend pas d'ours`): only there nothing else shows the number.
    """
    derivations = -sum(one.share * one.log_probability for one in _derivations(template, one_word_of_a_kind))
    if side == "english" or template is not negation:
        return derivations
    return derivations - sum(map(_lost_in_negation, words.SCENES)) / len(words.SCENES)


def _lost_in_negation(scene: words.Scene) -> float:
    """By how much the entropy of a negated object is less in French than that of its derivations."""

    def goal(choose: Chooser) -> Phrase:
        return decorated(choose, scene.objects, (*words.DEFINITE, words.NOT_A))

    together: dict[str, float] = defaultdict(float)
    found = list(_derivations(goal, lambda options: options))
    for one in found:
        together[one.made.french] += one.share
    return sum(one.share * (math.log(together[one.made.french]) - one.log_probability) for one in found)


class _Derivation(NamedTuple, Generic[T]):
    """What choices make; their probability; and the share it has when only admitted options are drawn, evenly."""

    made: T
    log_probability: float
    share: float


class _UndecidedError(Exception):
    """A derivation came to a choice, not made yet, of several admitted options or of none."""

    def __init__(self, ways: Sequence[Any]) -> None:
        self.ways = ways


class _Follow:
    """A `choose` that makes the choices it is told, then those that leave only one way, and stops at any other."""

    def __init__(self, path: list[Any], admitted: Admitted) -> None:
        self.path, self.admitted = path, admitted
        self.made = 0
        self.log_probability = 0.0

    def __call__(self, options: Sequence[T], /) -> T:
        if self.made == len(self.path):
            ways = self.admitted(options)
            if len(ways) != 1:
                raise _UndecidedError(ways)
            self.path.append(ways[0])
        self.log_probability -= math.log(len(options))
        self.made += 1
        chosen: T = self.path[self.made - 1]
        return chosen


def _derivations(make: Callable[[Chooser], T], admitted: Admitted) -> Iterator[_Derivation[T]]:
    """Every derivation whose options are all admitted."""
    begun: list[tuple[list[Any], float]] = [([], 1.0)]
    while begun:
        path, share = begun.pop()
        choose = _Follow(path, admitted)
        try:
            made = make(choose)
        except _UndecidedError as choice:
            begun += [([*path, way], share / len(choice.ways)) for way in choice.ways]
        else:
            yield _Derivation(made, choose.log_probability, share)


def _combinations(options: Sequence[T]) -> Sequence[T]:
    """In the famous case: everything that the combination of subject, object and adjective depends on, and no more."""
    combined = isinstance(options[0], Noun | Adjective | words.Hindrance) or options is ANTECEDENTS
    return options if combined else options[:1]


def _fits(option: object, known: frozenset[str], side: CorpusLanguage) -> bool:
    """Whether an option can be part of a sentence with these words; True where that is not known yet."""
    match option:
        case Noun() | Adjective() | Determiner() | Verb():
            return not known.isdisjoint(_forms(option, side))
        case words.NounClass():
            return any(_fits(noun, known, side) for noun in option.nouns)
        case words.Scene():
            return _fits(option.subjects, known, side) and _fits(option.objects, known, side)
        case words.Hindrance():
            return _fits(option.verb, known, side) and any(_fits(noun, known, side) for noun in option.objects)
        case _:
            return True


@cache
def _forms(word: LexiconEntry, side: CorpusLanguage) -> tuple[str, ...]:
    """Every form a word takes in a language."""
    english = side == "english"
    match word:
        case Noun():
            return (word.english, word.english_plural) if english else (word.french, word.french_plural)
        case Determiner():
            # des is de before an adjective
            french = (word.masculine, word.feminine, word.plural, *(("de",) if word.plural == "des" else ()))
            return (word.english, word.english_plural) if english else french
        case Adjective():
            plural = (word.masculine_plural, word.feminine_plural)
            return (word.english,) if english else (word.masculine, word.feminine, *plural, word.before_vowel)
        case Verb():
            participles = (word.participle + ending for ending in ("", "e", "s", "es"))
            french = (word.french_singular, word.french_plural, *participles)
            return (word.english, word.english_singular, word.english_past) if english else french
