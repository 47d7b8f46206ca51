"""Where one sentence ends and the next begins, in running text of many scripts.

Enters: a line of text and, if known, its language. Leaves: the offsets at which a new sentence begins. A mark ends a
sentence unless something speaks against it: an abbreviation, an initial, an ordinal number, a lower-case continuation,
a quotation that is still open. Work grows linearly with the text: no regular expression here can backtrack.
"""

import re
from itertools import accumulate

# Marks that end a sentence wherever they stand, of scripts that have no upper case and may have no spaces.
_ALWAYS = "。！？｡।॥؟۔։።፧។៕။‼⁇⁈⁉"
_CLOSING = "\"'”“’»›)]}」』）】》〉"
_OPENING = "\"'“‘«‹([{¿¡„‚「『（【《〈—–-*_#•"
_QUOTATIONS = dict(zip("「『（【《〈", "」』）】》〉", strict=True))
_ENDS = re.compile(f"[.!?…{_ALWAYS}]+[{re.escape(_CLOSING)}]*")

# Abbreviations after which a sentence goes on, and those after which it goes on with a number.
_GOES_ON = frozenset(
    """mr mrs ms dr drs prof hr hrn fr st sr sra srta mme mlle mgr mag dipl ing gen col lt sgt capt cpt rev hon gov sen
    messrs vs bzw ca cca approx zzgl inkl exkl ggf evtl vgl sog bspw geb gest str jan feb apr aug sept okt oct nov dez
    dec hl sogen incl excl cf viz al""".split()  # noqa: SIM905 - a list of these would be a page
)
_GOES_ON_WITH_A_NUMBER = frozenset(
    "no nos nr nro art fig vol vols pp pg pag kap abb sec ch eq ref tel nº num núm abs ziff".split()  # noqa: SIM905
)
# Languages that write ordinal numbers with a full stop: "am 3. Mai".
_ORDINALS = frozenset("bs cs da de et fi fo hr hu is lb lv nb nn no pl sk sl sr tr".split())  # noqa: SIM905
_LONGEST_ABBREVIATION = 12


def sentence_starts(text: str, language: str = "") -> list[int]:
    """The offsets at which each sentence but the first begins."""
    quoted = _inside_quotations(text)
    cased = text != text.lower()
    starts = []
    for mark in _ENDS.finditer(text):
        end = _past_closing(text, mark.end())
        start = end
        while start < len(text) and text[start].isspace():
            start += 1
        if start == len(text):
            break
        if quoted and quoted[mark.start()]:
            continue
        always = any(character in _ALWAYS for character in mark.group())
        if always or (start > end and _ends_a_sentence(text, mark, start, language, cased=cased)):
            starts.append(start)
    return starts


def _past_closing(text: str, end: int) -> int:
    """French sets a space before a closing quotation mark, « Viens ! », and it belongs to the sentence before it."""
    return end + 2 if text[end : end + 1].isspace() and text[end + 1 : end + 2] in ("»", "›") else end


def _ends_a_sentence(text: str, mark: re.Match[str], start: int, language: str, *, cased: bool) -> bool:
    """Whether a mark with white space after it ends a sentence; the next word begins at `start`."""
    if mark.start() == 0:
        return False
    following = next((character for character in text[start : start + 4] if character not in _OPENING), " ")
    if following.islower() and cased:
        return False
    if mark.group()[0] != "." or mark.group().startswith(".."):
        return True
    return not _is_abbreviation(text, mark.start(), following, language)


def _is_abbreviation(text: str, end: int, following: str, language: str) -> bool:
    """Whether the full stop at `end` belongs to the word before it."""
    start = end
    while start > 0 and end - start <= _LONGEST_ABBREVIATION and not text[start - 1].isspace():
        if text[start - 1] in _OPENING:
            break
        start -= 1
    word = text[start:end].lower()
    if word.isdecimal():  # "1. Introduction", "am 3. Mai"
        return start == 0 or (len(word) <= 2 and language[:2] in _ORDINALS)
    if word in _GOES_ON_WITH_A_NUMBER:
        return following.isdecimal()
    if word in ("a.m", "p.m", "i"):
        return False
    return word in _GOES_ON or all(len(part) == 1 and part.isalpha() for part in word.split("."))


def _inside_quotations(text: str) -> list[int]:
    """For each offset how many closed quotations it is inside of; empty where there are none.

    Only marks that come in distinct pairs count: a straight quotation mark does not say whether it opens or closes.
    """
    if not any(mark in text for mark in _QUOTATIONS):
        return []
    changes, waiting = [0] * (len(text) + 1), list[tuple[str, int]]()
    for offset, character in enumerate(text):
        if character in _QUOTATIONS:
            waiting.append((_QUOTATIONS[character], offset))
        elif waiting and character == waiting[-1][0]:
            changes[waiting.pop()[1]] += 1
            changes[offset] -= 1
    return list(accumulate(changes))
