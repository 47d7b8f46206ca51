"""Exact sentence probabilities and entropies of the built-in corpus: the lower bound for a language model's loss.

Enters: a sentence, or a language. Leaves: exact log-probabilities and entropies, in nats per sentence.

They refer to the grammar's distribution p: that of `sentence` when `choose` draws uniformly. `examples` draws from p
and keeps the sentences of one split, which a checksum of the English sentence determines. No model can predict the
checksum, so the best a model can learn from the training split is p, and the held-out sentences H are compared with p:

    cross_entropy("test", "french")                      the expected -log p of a sentence of that split
    -mean(log_probability(text) for text in sentences)   the mean -log p of these sentences: the bound for a model's
    loss

A model m is below the bound only if it gives H more probability than the grammar does: on average over H, log m - log p
is at most log(m(H) / p(H)) (Jensen's inequality), and training, which never shows a sentence of H, can only lower m(H).
So a model approaches the bound from above, up to sampling error: over n sentences, the standard deviation of
log m - log p, divided by the square root of n. Notes:

- On the training split a model can be below p's cross-entropy by up to -log p(train) = 0.27 nats, by learning which
  sentences are absent. Most of that means memorising every sentence; knowing the absent combinations of pronoun
  sentences is worth 0.07 nats, and costs on H.
- `corpus` drops duplicates, so frequent sentences are underrepresented. Train and test a language model on `examples`.
- A model also predicts the end of the sentence. Compare sums over sentences, not over tokens.
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


class OptionFilter(Protocol):
    """Selects the options of a choice that an enumeration follows."""

    def __call__(self, options: Sequence[T], /) -> Sequence[T]: ...


def log_probability(text: str, side: CorpusLanguage = "french") -> float:
    """The log-probability of a sentence under the grammar, summed over its derivations; -inf if it has none."""
    words_in_text = english_words(text) if side == "english" else french_words(text)

    def fitting(options: Sequence[T]) -> Sequence[T]:
        return [option for option in options if _fits(option, words_in_text, side)]

    log_probs = [
        derivation.log_probability
        for derivation in _derivations(sentence, fitting)
        if text == (derivation.result.source if side == "english" else derivation.result.target)
    ]
    return math.log(sum(map(math.exp, log_probs))) if log_probs else -math.inf


def entropy(side: CorpusLanguage = "french") -> float:
    """The entropy of the grammar's distribution over sentences."""
    return sum(p * (_entropy(template, side) - math.log(p)) for template, p in _templates())


@cache
def cross_entropy(split: DatasetSplit, side: CorpusLanguage = "french") -> float:
    """The cross-entropy of a split under the grammar: -log p, averaged over the split.

    It is slightly above the entropy for the held-out splits, since combinations of pronoun sentences are held out as a
    whole. The checksums of sentences are assumed to be uniform.
    """
    total = weighted = 0.0
    for template, probability in _templates():
        mean = _entropy(template, side) - math.log(probability)
        derivations = list(_derivations(template, _combinations if template is because else one_word_per_class))
        mean_log_probability = sum(derivation.share * derivation.log_probability for derivation in derivations)
        for derivation in derivations:
            held_out = held_out_share(derivation.result)
            share = probability * derivation.share * (1 - held_out if split == "train" else held_out)
            total += share
            weighted += share * (mean + mean_log_probability - derivation.log_probability)
    return weighted / total


def one_word_per_class(options: Sequence[T]) -> Sequence[T]:
    """Follow one noun, adjective or determiner for all: the later choices have as many options for each of them.

    This does not hold for verbs: whether `find` can be the second verb depends on the first.
    """
    return options[:1] if isinstance(options[0], Noun | Adjective | Determiner) else options


def _templates() -> list[tuple[Template, float]]:
    """Every template and its probability."""
    return [(template, 1 / len(TEMPLATES) / len(group)) for group in TEMPLATES for template in group]


@cache
def _entropy(template: Template, side: CorpusLanguage) -> float:
    """The entropy of a template's sentences.

    An English sentence has one derivation, so its entropy is that of the derivations. So has a French sentence, unless
    it negates a noun whose plural equals its singular (`n'entend pas d'ours`): nothing else shows the number there.
    """
    derivations = _derivations(template, one_word_per_class)
    of_derivations = -sum(derivation.share * derivation.log_probability for derivation in derivations)
    if side == "english" or template is not negation:
        return of_derivations
    return of_derivations - sum(map(_negation_ambiguity, words.SCENES)) / len(words.SCENES)


def _negation_ambiguity(scene: words.Scene) -> float:
    """The entropy of the derivations of a negated object minus the entropy of its French texts."""

    def goal(choose: Chooser) -> Phrase:
        return decorated(choose, scene.objects, (*words.DEFINITE, words.NOT_A))

    probabilities: dict[str, float] = defaultdict(float)
    derivations = list(_derivations(goal, lambda options: options))
    for derivation in derivations:
        probabilities[derivation.result.french] += derivation.share
    return sum(
        derivation.share * (math.log(probabilities[derivation.result.french]) - derivation.log_probability)
        for derivation in derivations
    )


class _Derivation(NamedTuple, Generic[T]):
    """A result, its probability, and its probability if options are drawn uniformly from the filtered ones only."""

    result: T
    log_probability: float
    share: float


class _UndecidedError(Exception):
    """A derivation reached a choice that its path does not determine: several filtered options, or none."""

    def __init__(self, options: Sequence[Any]) -> None:
        self.options = options


class _ReplayPath:
    """A `choose` that replays a path, extends it where only one option remains, and raises at any other choice."""

    def __init__(self, path: list[Any], select: OptionFilter) -> None:
        self.path, self.select = path, select
        self.choices = 0
        self.log_probability = 0.0

    def __call__(self, options: Sequence[T], /) -> T:
        if self.choices == len(self.path):
            remaining = self.select(options)
            if len(remaining) != 1:
                raise _UndecidedError(remaining)
            self.path.append(remaining[0])
        self.log_probability -= math.log(len(options))
        self.choices += 1
        chosen: T = self.path[self.choices - 1]
        return chosen


def _derivations(make: Callable[[Chooser], T], select: OptionFilter) -> Iterator[_Derivation[T]]:
    """Enumerate the derivations that use filtered options only."""
    partial: list[tuple[list[Any], float]] = [([], 1.0)]
    while partial:
        path, share = partial.pop()
        choose = _ReplayPath(path, select)
        try:
            result = make(choose)
        except _UndecidedError as choice:
            partial += [([*path, option], share / len(choice.options)) for option in choice.options]
        else:
            yield _Derivation(result, choose.log_probability, share)


def _combinations(options: Sequence[T]) -> Sequence[T]:
    """For pronoun sentences: follow only what determines the combination of subject, object and adjective."""
    is_relevant = isinstance(options[0], Noun | Adjective | words.Hindrance) or options is ANTECEDENTS
    return options if is_relevant else options[:1]


def _fits(option: object, allowed: frozenset[str], side: CorpusLanguage) -> bool:
    """Whether an option can occur in a sentence of these words; True if it is not a word or a group of words."""
    match option:
        case Noun() | Adjective() | Determiner() | Verb():
            return not allowed.isdisjoint(_forms(option, side))
        case words.NounClass():
            return any(_fits(noun, allowed, side) for noun in option.nouns)
        case words.Scene():
            return _fits(option.subjects, allowed, side) and _fits(option.objects, allowed, side)
        case words.Hindrance():
            return _fits(option.verb, allowed, side) and any(_fits(noun, allowed, side) for noun in option.objects)
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
