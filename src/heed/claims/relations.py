"""Which tokens of a built-in sentence pair are related, by the grammar that made it: what attention is compared with.

Enters: an example. Leaves: pairs of positions, of a query and of the key that it is related to. Tokens are words and
punctuation, as with `data.tokenizer = "words"`: `didn't` is `didn` and `'t`, `l'âne` is `l`, `'` and `âne`.

In the encoder, from source token to source token:

    previous token, next token
    adjective → noun     tired → dog in `the dog isn't tired`, old → car in `the old red car`
    verb → subject       buy → man in `the man doesn't buy`, is → girl in `the girl who reads the book is happy`
    it → antecedent      it → dog in `the dog didn't cross the street because it was too tired`

In cross-attention, from the row that predicts a target token to a source token:

    French noun → English noun          chien → dog
    French determiner → English noun    le → dog: the noun decides its gender and number
    il, elle → antecedent               il → dog
"""

import re
from collections.abc import Iterator, Sequence
from typing import Literal, get_args

from heed.microworld import words
from heed.microworld.corpus import Example
from heed.microworld.grammar import Noun

PositionalRelation = Literal["previous token", "next token"]
EncoderRelation = Literal["adjective → noun", "verb → subject", "it → antecedent"]
CrossRelation = Literal["French noun → English noun", "French determiner → English noun", "il, elle → antecedent"]
Relation = PositionalRelation | EncoderRelation | CrossRelation
PositionPair = tuple[int, int]  # of a query and a key

POSITIONAL: tuple[Relation, ...] = get_args(PositionalRelation)
CROSS: tuple[Relation, ...] = get_args(CrossRelation)
GRAMMATICAL: tuple[Relation, ...] = (*get_args(EncoderRelation), *CROSS)

_DETERMINERS = {"the", "this", "these", "my", "a", "an", "some", "any"}
_FRENCH_DETERMINERS = {
    *("le", "la", "l", "les", "du", "au", "aux"),
    *("ce", "cet", "cette", "ces", "mon", "ma", "mes", "un", "une", "des"),
}
_DO = {"don", "doesn", "didn"}  # followed by 't and the verb


def tokens_of(sentence: str) -> list[str]:
    """The tokens of a sentence, in lower case."""
    return re.findall(r"'[st]|\w+|[^\w\s]", sentence.lower())


def related_tokens(example: Example) -> dict[Relation, list[PositionPair]]:
    """The pairs of each relation; a relation that the sentence does not have has none."""
    source, target = tokens_of(example.source), tokens_of(example.target)
    nouns = _nouns_after_determiners(source)
    pairs: dict[Relation, list[PositionPair]] = {
        "previous token": [(position, position - 1) for position in range(1, len(source))],
        "next token": [(position, position + 1) for position in range(len(source) - 1)],
        "adjective → noun": [*_attributes(source, nouns), *_predicates(source, nouns, example)],
        "verb → subject": list(_verbs(source, nouns, example.rule)),
        "it → antecedent": [],
        "French noun → English noun": _translated_nouns(source, target, nouns),
        "il, elle → antecedent": [],
    }
    pairs["French determiner → English noun"] = [
        (determiner, english)
        for french, english in pairs["French noun → English noun"]
        if (determiner := _french_determiner(target, french)) is not None
    ]
    if example.antecedent is not None:
        antecedent = _antecedent(nouns, example)
        pairs["it → antecedent"] = [(source.index("it"), antecedent)]
        pairs["il, elle → antecedent"] = [(target.index("parce") + 3, antecedent)]  # parce qu ' il
    return pairs


def _nouns_after_determiners(source: Sequence[str]) -> list[int]:
    """The noun of each noun phrase: after a determiner or a possessive, and up to two adjectives."""
    nouns = []
    for start, token in enumerate(source):
        if token in _DETERMINERS or token == "'s":  # noqa: S105 - a token of text
            noun = start + 1
            while source[noun] in words.ADJECTIVES:
                noun += 1
            nouns.append(noun)
    return nouns


def _attributes(source: Sequence[str], nouns: Sequence[int]) -> Iterator[PositionPair]:
    """The adjectives before a noun."""
    for noun in nouns:
        adjective = noun - 1
        while source[adjective] in words.ADJECTIVES:
            yield adjective, noun
            adjective -= 1


def _predicates(source: Sequence[str], nouns: Sequence[int], example: Example) -> Iterator[PositionPair]:
    """The adjective after a form of be, which ends the sentence."""
    adjective = len(source) - 2  # before the full stop
    match example.rule:
        case "because":
            yield adjective, _antecedent(nouns, example)
        case "attribute" | "relative-subject" | "relative-object":
            yield adjective, nouns[0]
        case "possession":
            yield adjective, nouns[1]


def _verbs(source: Sequence[str], nouns: Sequence[int], rule: str) -> Iterator[PositionPair]:
    """The verbs whose subject is a noun; of a negated verb the verb itself, not do."""
    subject = nouns[1] if rule in ("relative-object", "possession") else nouns[0]
    verb = subject + (2 if rule == "relative-subject" else 1)  # after who or that
    yield verb + 2 if source[verb] in _DO else verb, subject
    if rule in ("relative-subject", "relative-object"):
        yield len(source) - 3, nouns[0]  # the form of be before the last adjective


def _antecedent(nouns: Sequence[int], example: Example) -> int:
    """The antecedent of `it` in a pronoun sentence, which has two nouns."""
    subject, goal = nouns
    return subject if example.antecedent == "subject" else goal


def _translated_nouns(source: Sequence[str], target: Sequence[str], nouns: Sequence[int]) -> list[PositionPair]:
    """The French and the English noun, if both occur once: the row of a token's index predicts that token."""
    pairs = []
    for noun in nouns:
        french = _FRENCH_NOUNS[source[noun]]
        if source.count(source[noun]) == target.count(french) == 1:
            pairs.append((target.index(french), noun))
    return pairs


def _french_determiner(target: Sequence[str], noun: int) -> int | None:
    """The determiner of a French noun, before it and at most one adjective; de, which agrees with nothing, is none."""
    position = noun - 1
    if target[position] in _FRENCH_ADJECTIVES or target[position] == "'":
        position -= 1
    return position if target[position] in _FRENCH_DETERMINERS else None


def _nouns() -> Iterator[Noun]:
    for scene in words.SCENES:
        yield from (*scene.subjects.nouns, *scene.objects.nouns)
    for hindrance in words.HINDRANCES:
        yield from hindrance.objects


_FRENCH_NOUNS = {
    english: french
    for noun in _nouns()
    for english, french in ((noun.english, noun.french), (noun.english_plural, noun.french_plural))
}
_FRENCH_ADJECTIVES = frozenset(
    form
    for word in words.ADJECTIVES.values()
    for form in (
        word.masculine, word.feminine, word.masculine_plural, word.feminine_plural, word.before_vowel
    )
)  # fmt: skip
