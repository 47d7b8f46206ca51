"""Text of any kind as it is drawn: how a token is shown, how wide words are, how much of them fits.

How a token is shown:

    " dog"                              dog         one space before a word goes without saying
    a b, a no-break space, …            a␣b         any other white space
    new line, tab                       ⏎, ⇥
    what nobody can see                 ‹200F›      control characters, direction marks, halves of surrogate pairs …
    a mark without its letter           ◌́           and of many marks on one letter the first three
    nothing at all                      ∅
    too long for its place              antidis…    the pointer on it tells the whole, spaces and all

Knows nothing of drawing.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator

import numpy as np

_SIGNS = {"\n": "⏎", "\t": "⇥"}
_JOINERS = "\u200c\u200d"  # shape the letters on both sides of them: Persian, Hindi, 👩‍🌾
_BLANK_LETTERS = "\u115f\u1160\u2800\u3164\uffa0"
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

# Widths in ems of DejaVu Sans, which is wider than most: text may turn out narrower, hardly ever wider.
_WIDTHS = {
    character: width
    for characters, width in {
        "'IJijl": 0.3,
        " ,-./:;\\f|": 0.37,
        "!()[]rt": 0.42,
        '"*?L_`csz': 0.56,
        "ABCKRVXZ": 0.7,
        "&DGHNOQU": 0.8,
        "#+<=>M^w~−": 0.86,
        "%@Wm…—→": 1.0,
        "ŒÆæœ": 1.07,
        "–‘’‚“”„‹›«»": 0.62,
    }.items()
    for character in characters
}


def spelt(token: str) -> str:
    """The whole token with a sign for everything in it that cannot be seen."""
    last = len(token) - 1
    signs = (
        character if character in _JOINERS and 0 < place < last else _sign(character)
        for place, character in enumerate(token)
    )
    return ("◌" if _is_mark(token[:1]) else "") + "".join(signs) or "∅"


def _sign(character: str) -> str:
    category = unicodedata.category(character)
    if category == "Zs":
        return "␣"
    hidden = category[0] == "C" or category in ("Zl", "Zp") or character in _BLANK_LETTERS
    return _SIGNS.get(character, f"‹{ord(character):04X}›") if hidden else character


def _is_mark(character: str) -> bool:
    return bool(character) and unicodedata.category(character)[0] == "M"


def label(token: str, room: float, size: float) -> str:
    """A token as it is shown where there is so much room: see the head of this file."""
    goes_without_saying = token[:1] == " " and bool(token[1:2].strip())
    return isolated(fitted(spelt(token[goes_without_saying:]), room, size))


def isolated(words: str) -> str:
    """The words, with marks around any from right to left, so that what stands beside them keeps its place."""
    leftward = any(unicodedata.bidirectional(character) in ("R", "AL", "AN") for character in words)
    return f"\u2068{words}\u2069" if leftward else words


def width(words: str, size: float) -> float:
    """About how wide the words are drawn, in the units of the size."""
    return size * sum(map(_ems, words))


def _ems(character: str) -> float:
    if known := _WIDTHS.get(character):
        return known
    category = unicodedata.category(character)
    if category in ("Mn", "Me", "Cf"):
        return 0.0
    if unicodedata.east_asian_width(character) in "WF":
        return 1.3 if character >= "\U0001f000" else 1.0  # emoji, Chinese
    parts = unicodedata.normalize("NFKD", character)
    if parts != character:
        return sum(map(_ems, parts))
    if character < "\u0250":
        return 0.65  # Latin
    return {"Ll": 0.75, "Lu": 0.85}.get(category, 1.0)


def widest(some: Iterable[str], size: float) -> float:
    """The width of the widest words."""
    return max(width(words, size) for words in some)


def fitted(words: str, room: float, size: float) -> str:
    """The words, or as many of their letters as there is room for and a sign that there are more."""
    letters = list(_letters(sayable(words)))
    if width("".join(letters), size) <= room:
        return "".join(letters)
    total = np.cumsum([width(letter, size) for letter in letters]) + width("…", size)
    return "".join(letters[: int(np.searchsorted(total, room, side="right"))]) + "…"


def _letters(words: str) -> Iterator[str]:
    """The words letter by letter, each with the marks on it and what is joined to it."""
    letter = ""
    for character in words:
        joined = _is_mark(character) or character in _JOINERS or letter[-1:] == "\u200d"
        if letter and not joined:
            yield letter
            letter = ""
        if not (_is_mark(character) and sum(map(_is_mark, letter)) >= 3):
            letter += character
    if letter:
        yield letter


def sayable(words: str) -> str:
    """XML has no control characters and no halves of surrogate pairs."""
    return _NO_XML.sub("�", words)
