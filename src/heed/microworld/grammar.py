"""The grammar of the built-in corpus: word types, agreement, elision and contraction.

Enters: words of the lexicon. Leaves: English and French phrases and sentences that are right in gender, number, elision
and contraction. Everything here is a pure function; nothing here draws at random or knows which words there are.

A template writes French with every word in full, `le animal ne a pas`, and `french_sentence` applies elision
and contraction, `L'animal n'a pas.`: they depend only on neighbouring words, so the rules are written once.
"""

from dataclasses import dataclass
from typing import Literal

Gender = Literal["masculine", "feminine"]
Number = Literal["singular", "plural"]
NUMBERS: tuple[Number, ...] = ("singular", "plural")

_VOWELS = frozenset("aeiouàâéèêëîïôûœ")
_ASPIRATED = frozenset({"hibou", "hiboux", "haut", "haute"})  # every other h is silent: l'homme, but le hibou
_BEFORE_A_VOWEL = {
    "le": "l'",
    "la": "l'",
    "ne": "n'",
    "de": "d'",
    "que": "qu'",
    "ce": "cet ",
    "ma": "mon ",
}
_CONTRACTIONS = {("de", "le"): "du", ("de", "les"): "des", ("à", "le"): "au", ("à", "les"): "aux"}


@dataclass(frozen=True)
class Noun:
    """A noun in both languages; French gives it a gender."""

    english: str
    english_plural: str
    french: str
    french_plural: str
    gender: Gender


@dataclass(frozen=True)
class Adjective:
    """An adjective; `before_vowel` is the special masculine of beau, nouveau and vieux, else as `masculine`."""

    english: str
    masculine: str
    feminine: str
    masculine_plural: str
    feminine_plural: str
    before_vowel: str


@dataclass(frozen=True)
class Verb:
    """A verb in the third person; `preposition` stands before its object in French (entrer dans)."""

    english: str
    english_singular: str
    english_past: str
    french_singular: str
    french_plural: str
    participle: str
    auxiliary: Literal["avoir", "être"] = "avoir"
    preposition: str = ""


@dataclass(frozen=True)
class Determiner:
    """A word such as the, this, my or a."""

    english: str
    english_plural: str
    masculine: str
    feminine: str
    plural: str


@dataclass(frozen=True)
class Phrase:
    """A noun phrase in both languages, with the noun and number that other words agree with."""

    english: str
    french: str
    noun: Noun
    number: Number


def starts_with_vowel(word: str) -> bool:
    """Whether a French word is spoken with a vowel first: l'animal, l'homme, but le hibou."""
    return word[0] in _VOWELS or (word[0] == "h" and word not in _ASPIRATED)


def agreeing(adjective: Adjective, noun: Noun, number: Number) -> str:
    """The form of an adjective that describes this noun: blanc, blanche, blancs, blanches."""
    if number == "singular":
        return adjective.masculine if noun.gender == "masculine" else adjective.feminine
    return adjective.masculine_plural if noun.gender == "masculine" else adjective.feminine_plural


def noun_phrase(
    determiner: Determiner,
    noun: Noun,
    number: Number = "singular",
    before: Adjective | None = None,
    after: Adjective | None = None,
) -> Phrase:
    """A phrase such as `this old red car`, `cette vieille voiture rouge`; before and after: French positions."""
    adjectives = [adjective.english for adjective in (before, after) if adjective]
    if number == "singular":
        english = [determiner.english, *adjectives, noun.english]
        article = determiner.masculine if noun.gender == "masculine" else determiner.feminine
        french_noun = noun.french
    else:
        english = [determiner.english_plural, *adjectives, noun.english_plural]
        # An adjective in front turns des into de: des arbres verts, de vieux arbres.
        article = "de" if before and determiner.plural == "des" else determiner.plural
        french_noun = noun.french_plural
    french = [article]
    if before:
        french.append(_before_noun(before, noun, number))
    french.append(french_noun)
    if after:
        french.append(agreeing(after, noun, number))
    return Phrase(" ".join(english), " ".join(french), noun, number)


def _before_noun(adjective: Adjective, noun: Noun, number: Number) -> str:
    if noun.gender == "masculine" and number == "singular" and starts_with_vowel(noun.french):
        return adjective.before_vowel
    return agreeing(adjective, noun, number)


def subject_pronoun(noun: Noun, number: Number) -> str:
    """The French subject pronoun: il, elle, ils or elles."""
    pronoun = "il" if noun.gender == "masculine" else "elle"
    return pronoun if number == "singular" else pronoun + "s"


def object_pronoun(noun: Noun, number: Number) -> str:
    """The French object pronoun, which precedes the verb: le, la or les."""
    if number == "plural":
        return "les"
    return "le" if noun.gender == "masculine" else "la"


def english_present(verb: Verb, number: Number) -> str:
    """The verb after he or she, or after they: sees, see."""
    return verb.english_singular if number == "singular" else verb.english


def french_present(verb: Verb, number: Number) -> str:
    """The verb after il or elle, or after ils or elles: voit, voient."""
    return verb.french_singular if number == "singular" else verb.french_plural


def auxiliary(verb: Verb, number: Number) -> str:
    """The auxiliary of the passé composé."""
    if verb.auxiliary == "avoir":
        return "a" if number == "singular" else "ont"
    return "est" if number == "singular" else "sont"


def participle(verb: Verb, subject: Phrase) -> str:
    """The participle of the passé composé: with être it agrees with the subject, with avoir it does not."""
    if verb.auxiliary == "avoir":
        return verb.participle
    feminine = "e" if subject.noun.gender == "feminine" else ""
    plural = "s" if subject.number == "plural" else ""
    return verb.participle + feminine + plural


def english_sentence(text: str) -> str:
    """An English sentence of these words: `an` before vowels, a capital and a full stop."""
    words = text.split()
    following = [*words[1:], "."]
    joined = " ".join(
        "an" if word == "a" and after[0] in "aeiou" else word for word, after in zip(words, following, strict=True)
    )
    return _punctuated(joined)


def french_sentence(text: str) -> str:
    """A French sentence of these words: elision and contraction, a capital and a full stop."""
    words = text.split()
    joined: list[str] = []
    while words:
        word = words.pop(0)
        following = words[0] if words else "."
        second = words[1] if len(words) > 1 else "."
        if word in _BEFORE_A_VOWEL and starts_with_vowel(following):
            joined.append(_BEFORE_A_VOWEL[word])
        elif (word, following) in _CONTRACTIONS and not (following == "le" and starts_with_vowel(second)):
            joined.append(_CONTRACTIONS[word, following] + " ")
            words.pop(0)
        else:
            joined.append(word + " ")
    return _punctuated("".join(joined).strip())


def english_words(sentence: str) -> frozenset[str]:
    """The words from which `english_sentence` can have made a sentence."""
    words = _unpunctuated(sentence).replace("'s ", " the ").split()  # the king's house: the house of the king
    return frozenset("a" if word == "an" else word for word in words)


def french_words(sentence: str) -> frozenset[str]:
    """The words from which `french_sentence` can have made a sentence, in full: for l' both le and la."""
    words = frozenset(_unpunctuated(sentence).replace("'", "' ").split())
    elided = {full for full, joined in _BEFORE_A_VOWEL.items() if joined.strip() in words}
    contracted = {full for pair, joined in _CONTRACTIONS.items() if joined in words for full in pair}
    return words | elided | contracted


def _punctuated(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _unpunctuated(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:].removesuffix(".")
