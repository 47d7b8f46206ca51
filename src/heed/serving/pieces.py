"""Texts to the pieces that a model translates at once, and translations back to what a client is told of each text."""

from collections.abc import Sequence
from dataclasses import dataclass

from heed.config import Split
from heed.inference.translation import Translation
from heed.inference.translator import Translator
from heed.text.sentence_split import Piece


@dataclass(frozen=True)
class Answer:
    """What came of one text."""

    text: str
    alternatives: list[str]
    language: tuple[str, float]  # its own, and how sure that is
    translation: Translation | None = None  # none: its language was the target's, or it was HTML
    truncated: bool = False  # the length limit ended some of it, and not the model


@dataclass(frozen=True)
class Cut:
    """A text in pieces, ready for its model."""

    pieces: list[Piece]
    lengths: list[int]  # in tokens, of those that are not empty


def cut(texts: Sequence[str], translator: Translator, split: Split | None) -> list[Cut]:
    """Texts in pieces; what has no letters is not translated, and goes with the white space."""
    found = []
    for text in texts:
        pieces = [
            piece if has_letters(piece.text) else Piece(piece.before + piece.text + piece.after, "", "", piece.abuts)
            for piece in translator.pieces(text, split)
        ]
        encoded = translator.tokenizers[0].encode([piece.text for piece in pieces if piece.text])
        found.append(Cut(pieces, [len(ids) for ids in encoded]))
    return found


def has_letters(text: str) -> bool:
    """Whether there is anything to translate: numbers, punctuation and emoji are the same in every language."""
    return any(character.isalpha() for character in text)


def unchanged(text: str) -> Translation:
    """What comes of a text that needs no model."""
    return Translation(text, 0.0, 0.0, (), (), (), ())


def others(best: str, texts: Sequence[str]) -> list[str]:
    """Alternatives that differ from the best and from each other: several token sequences may spell one text."""
    return [text for text in dict.fromkeys(texts) if text != best]


def ranks(found: Sequence[Translation]) -> list[list[str]]:
    """The best of each, then the second best of each, as far as all have one."""
    depth = min((len(one.alternatives) for one in found), default=0)
    return [[(one, *one.alternatives)[rank].text for one in found] for rank in range(depth + 1)]
