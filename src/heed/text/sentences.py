"""Finds sentence boundaries in running text of many scripts by rules.

Enters: a line of text and, if known, its language. Leaves: the offsets at which sentences start. Terminal punctuation
ends a sentence unless it belongs to an abbreviation, an initial or an ordinal number, a lower-case word follows, or a
quotation is still open. Time is linear in the length of the text: no regular expression here can backtrack.
"""

import re
from itertools import accumulate

# Punctuation that always ends a sentence, in scripts without upper case and often without spaces.
_ALWAYS = "。！？｡।॥؟۔։።፧។៕။‼⁇⁈⁉"
_CLOSING = "\"'”“’»›)]}」』）】》〉"
_OPENING = "\"'“‘«‹([{¿¡„‚「『（【《〈—–-*_#•"
_QUOTATIONS = dict(zip("「『（【《〈", "」』）】》〉", strict=True))
_TERMINAL = re.compile(f"[.!?…{_ALWAYS}]+[{re.escape(_CLOSING)}]*")

# Abbreviations that never end a sentence, and abbreviations that do not end one before a number.
_ABBREVIATIONS = frozenset(
    """mr mrs ms dr drs prof hr hrn fr st sr sra srta mme mlle mgr mag dipl ing gen col lt sgt capt cpt rev hon gov sen
    messrs vs bzw ca cca approx zzgl inkl exkl ggf evtl vgl sog bspw geb gest str jan feb apr aug sept okt oct nov dez
    dec hl sogen incl excl cf viz al""".split()  # noqa: SIM905 - a list of these would be a page
)
_NUMBER_ABBREVIATIONS = frozenset(
    "no nos nr nro art fig vol vols pp pg pag kap abb sec ch eq ref tel nº num núm abs ziff".split()  # noqa: SIM905
)
# Languages that write ordinal numbers with a full stop: "am 3. Mai".
_ORDINAL_LANGUAGES = frozenset("bs cs da de et fi fo hr hu is lb lv nb nn no pl sk sl sr tr".split())  # noqa: SIM905
_LONGEST_ABBREVIATION = 12


def sentence_starts(text: str, language: str = "") -> list[int]:
    """The start offset of each sentence except the first."""
    quotation_depth = _quotation_depth(text)
    cased = text != text.lower()
    starts = []
    for mark in _TERMINAL.finditer(text):
        end = _after_french_quote(text, mark.end())
        start = end
        while start < len(text) and text[start].isspace():
            start += 1
        if start == len(text):
            break
        if quotation_depth and quotation_depth[mark.start()]:
            continue
        always = any(character in _ALWAYS for character in mark.group())
        if always or (start > end and _ends_a_sentence(text, mark, start, language, cased=cased)):
            starts.append(start)
    return starts


def _after_french_quote(text: str, end: int) -> int:
    """Skip a French closing quotation mark, which has a space before it: « Viens ! »."""
    return end + 2 if text[end : end + 1].isspace() and text[end + 1 : end + 2] in ("»", "›") else end


def _ends_a_sentence(text: str, mark: re.Match[str], start: int, language: str, *, cased: bool) -> bool:
    """Whether punctuation that is followed by white space ends a sentence; the next word starts at `start`."""
    if mark.start() == 0:
        return False
    following = next((character for character in text[start : start + 4] if character not in _OPENING), " ")
    if following.islower() and cased:
        return False
    if mark.group()[0] != "." or mark.group().startswith(".."):
        return True
    return not _is_abbreviation(text, mark.start(), following, language)


def _is_abbreviation(text: str, end: int, following: str, language: str) -> bool:
    """Whether the full stop at `end` belongs to an abbreviation, an initial or an ordinal number."""
    start = end
    while start > 0 and end - start <= _LONGEST_ABBREVIATION and not text[start - 1].isspace():
        if text[start - 1] in _OPENING:
            break
        start -= 1
    word = text[start:end].lower()
    if word.isdecimal():  # "1. Introduction", "am 3. Mai"
        return start == 0 or (len(word) <= 2 and language[:2] in _ORDINAL_LANGUAGES)
    if word in _NUMBER_ABBREVIATIONS:
        return following.isdecimal()
    if word in ("a.m", "p.m", "i"):
        return False
    return word in _ABBREVIATIONS or all(len(part) == 1 and part.isalpha() for part in word.split("."))


def _quotation_depth(text: str) -> list[int]:
    """The nesting depth of quotations at each offset; empty if there are no quotations.

    Only distinct opening and closing marks count: a straight quotation mark may be either.
    """
    if not any(mark in text for mark in _QUOTATIONS):
        return []
    changes, open_quotations = [0] * (len(text) + 1), list[tuple[str, int]]()
    for offset, character in enumerate(text):
        if character in _QUOTATIONS:
            open_quotations.append((_QUOTATIONS[character], offset))
        elif open_quotations and character == open_quotations[-1][0]:
            changes[open_quotations.pop()[1]] += 1
            changes[offset] -= 1
    return list(accumulate(changes))
