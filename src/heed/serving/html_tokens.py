"""Where markup begins and ends in HTML, by the tokenizer of the HTML standard (https://html.spec.whatwg.org, 13.2.5).

Enters: a document and the offset of a `<`. Leaves: the tag that begins there with its name and attributes, or the end
of a comment, of a declaration or of raw text. What elements mean is not known here; `markup` knows it.

The standard library's `html.parser` is not used: it gives no offsets, and what it takes for a comment or for raw text
differs between releases of Python. Every scan goes forward over characters once, so that no document makes it slow;
none of the regular expressions backtracks.
"""

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass

_NAME = re.compile(r"[^ \t\n\r\f/>]*")
_GAP = re.compile(r"[ \t\n\r\f/]*")  # between attributes
_SPACE = re.compile(r"[ \t\n\r\f]*")
_ATTRIBUTE = re.compile(r"=?[^ \t\n\r\f/>=]*")  # a = is part of the name where a name is expected
_UNQUOTED = re.compile(r"[^ \t\n\r\f>]*")
_COMMENT_END = re.compile(r"--!?>")
# `<!` stands for `<!--`, whose dashes may belong to `-->`, too.
_SCRIPT_MARKS = re.compile(r"<!(?=--)|-->|</?script(?=[ \t\n\r\f/>])")
_LOWER = {ord(letter): ord(letter.lower()) for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}


@dataclass(frozen=True)
class Tag:
    """A start tag or an end tag; `end` is the offset after its `>`."""

    name: str  # in small letters
    is_end: bool
    is_empty: bool  # written with />
    attributes: Mapping[str, str]  # names in small letters, values without entities
    end: int


def lowered(text: str) -> str:
    """ASCII letters in lower case, as HTML compares names; the length never changes."""
    return text.lower() if text.isascii() else text.translate(_LOWER)


def tag_at(document: str, start: int) -> Tag | None:
    """The tag that begins with the `<` at this offset, if one does; one that is not finished goes to the end."""
    is_end = document.startswith("/", start + 1)
    place = start + 1 + is_end
    first = document[place : place + 1]
    if not (first.isascii() and first.isalpha()):
        return None
    place, name = _read(_NAME, document, place)
    attributes: dict[str, str] = {}
    while True:
        place, gap = _read(_GAP, document, place)
        if document.startswith(">", place) or place == len(document):
            after = min(place + 1, len(document))
            return Tag(lowered(name), is_end, gap.endswith("/"), attributes, after)
        place, key = _read(_ATTRIBUTE, document, place)
        place, value = _value(document, place)
        attributes.setdefault(lowered(key), html.unescape(value))


def _value(document: str, place: int) -> tuple[int, str]:
    """What follows an attribute's name: the offset after its value, and the value."""
    after, _ = _read(_SPACE, document, place)
    if not document.startswith("=", after):
        return place, ""
    place, _ = _read(_SPACE, document, after + 1)
    quote = document[place : place + 1]
    if quote not in ('"', "'"):
        return _read(_UNQUOTED, document, place)
    closing = document.find(quote, place + 1)
    end = len(document) if closing < 0 else closing
    return min(end + 1, len(document)), document[place + 1 : end]


def _read(pattern: re.Pattern[str], document: str, place: int) -> tuple[int, str]:
    found = pattern.match(document, place)
    return (found.end(), found.group()) if found else (place, "")


def comment_end(document: str, start: int, *, is_foreign: bool) -> int:
    """Where the comment, declaration or instruction that begins with this `<` ends; `start` itself: the `<` is text.

    is_foreign: within SVG or MathML, the only places where CDATA sections exist.
    """
    if document.startswith("<!--", start):
        short = re.compile(r"-?>").match(document, start + 4)  # <!--> and <!---> are whole comments
        found = short or _COMMENT_END.search(document, start + 4)
        return found.end() if found else len(document)
    if is_foreign and document.startswith("<![CDATA[", start):
        end = document.find("]]>", start)
        return len(document) if end < 0 else end + 3
    follows = document[start + 1 : start + 2]
    if follows in ("!", "?") or (follows == "/" and start + 2 < len(document)):
        end = document.find(">", start)
        return len(document) if end < 0 else end + 1
    return start


def raw_text_end(lower: str, name: str, start: int) -> int:
    """Where the end tag of the raw element whose content begins here stands. lower: the document, `lowered`."""
    if name == "plaintext":
        return len(lower)
    if name == "script":
        return _script_end(lower, start)
    found = re.compile(rf"</{name}(?=[ \t\n\r\f/>])").search(lower, start)
    return found.start() if found else len(lower)


def _script_end(lower: str, start: int) -> int:
    """In a script, `<!-- <script>` hides one `</script>`, until `-->`: old pages write scripts by scripts that way."""
    is_escaped = is_nested = False
    for mark in _SCRIPT_MARKS.finditer(lower, start):
        match mark.group():
            case "<!":
                is_escaped = True
            case "-->":
                is_escaped = is_nested = False
            case "<script":
                is_nested = is_escaped
            case "</script" if not is_nested:
                return mark.start()
            case _:
                is_nested = False
    return len(lower)
