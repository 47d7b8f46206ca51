"""HTML to the texts in it, and back with other texts in their places; every other character stays as it is.

Tags, attributes, comments and declarations are never touched, nor is what stands in elements that hold no prose
(`script`, `style`, `code` and their kind). Each text between two tags is a text of its own: a sentence that an inline
tag runs through is translated in parts, and its white space at both ends is kept. A text comes out with `&lt;` read as
`<`, and goes back with `<` written as `&lt;`: what was escaped stays escaped, and no translation can become a tag.

One pass from left to right, without regular expressions: no input makes it slow. It follows the tokenizer of the HTML
standard as far as telling tags from text goes. What looks like an unfinished tag at the end is left alone.
"""

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# What stands in these is shown as it is, or run; only their own end tag ends the first kind, whatever looks like a tag.
_RAW = frozenset(
    {"script", "style", "xmp", "iframe", "noembed", "noframes", "noscript", "textarea", "title", "plaintext"}
)
_NO_PROSE = frozenset({"code", "pre", "kbd", "samp", "var", "svg", "math", "template"})
_SPACE = " \t\n\r\f"


@dataclass(frozen=True)
class Part:
    """Some of a document: markup as it stands, or a text with the white space around it."""

    raw: str
    text: str | None = None  # to be translated, without entities
    before: str = ""
    after: str = ""

    @classmethod
    def prose(cls, raw: str) -> "Part":
        """What stands between two tags."""
        text = html.unescape(raw)
        inner = text.strip()
        if not inner:
            return cls(raw)
        start = text.index(inner)
        return cls(raw, inner, text[:start], text[start + len(inner) :])


def parts(document: str) -> list[Part]:
    """A document, cut; joined with the texts it has, `joined` gives an equal one."""
    found: list[Part] = []
    place, closed = 0, ""  # closed: the element without prose that we are in
    depth = 0
    for start, end in _tags(document):
        name, ends = _name(document, start)
        between = document[place:start]
        found.append(Part(between) if closed else Part.prose(between))
        found.append(Part(document[start:end]))
        place = end
        if closed and name == closed:
            depth += -1 if ends else 1
            closed = closed if depth else ""
        elif not closed and not ends and name in _NO_PROSE and document[end - 2 : end] != "/>":
            closed, depth = name, 1
    rest = document[place:]
    found.append(Part(rest) if closed else Part.prose(rest))
    return [part for part in found if part.raw]


def joined(cut: Sequence[Part], texts: Sequence[str]) -> str:
    """The document with these in the place of its texts, in order."""
    new = iter(texts)
    return "".join(
        part.raw if part.text is None else html.escape(f"{part.before}{next(new)}{part.after}", quote=False)
        for part in cut
    )


def _tags(document: str) -> Iterator[tuple[int, int]]:
    """Where tags, comments and whole elements of raw text begin and end."""
    place = 0
    lower = document.lower() if document.isascii() else document.translate(_LOWER)
    while (start := document.find("<", place)) >= 0:
        end = _end(document, start)
        if end == start:  # a < that is text
            place = start + 1
            continue
        yield start, end
        place = end
        name, ends = _name(document, start)
        if name in _RAW and not ends and end < len(document):
            stop = _raw_end(lower, name, end)
            if stop > end:
                yield end, stop
            place = stop


def _end(document: str, start: int) -> int:
    """Where what begins with this < ends; at the < itself if it is text."""
    size = len(document)
    follows = document[start + 1 : start + 2]
    if document.startswith("<!--", start):
        if document.startswith(">", start + 4) or document.startswith("->", start + 4):  # <!--> and <!---> are whole
            return document.index(">", start) + 1
        place = start + 4
        while (place := document.find("--", place)) >= 0:
            for mark in ("-->", "--!>"):
                if document.startswith(mark, place):
                    return place + len(mark)
            place += 1
        return size
    closing = follows == "/" and _letter(document[start + 2 : start + 3])
    if _letter(follows) or closing:
        return _tag_end(document, start)
    if follows in ("!", "?") or (follows == "/" and start + 2 < size):
        found = document.find(">", start)
        return size if found < 0 else found + 1
    return start


# Where in a tag we are, and where the next character takes us: white space, / or =; any other character is *, and what
# is not listed changes nothing. A quote has a meaning only where a value may begin, and a = only after a name.
_STATES = {
    "tag": {" ": "before", "/": "before"},
    "before": {" ": "before", "/": "before", "=": "name", "*": "name"},
    "name": {" ": "named", "/": "before", "=": "equals"},
    "named": {" ": "named", "/": "before", "=": "equals", "*": "name"},
    "equals": {" ": "equals", "/": "value", "=": "value", "*": "value"},
    "value": {" ": "before"},
}


def _tag_end(document: str, start: int) -> int:
    """After the > that is in no attribute's value."""
    place, size, state = start + 1, len(document), "tag"
    if document.startswith("/", place):
        place += 1
    while place < size:
        character = document[place]
        if character == ">":
            return place + 1
        if state == "equals" and character in "\"'":
            closing = document.find(character, place + 1)
            if closing < 0:
                return size
            place, state = closing + 1, "before"
            continue
        kind = " " if character in _SPACE else character if character in "/=" else "*"
        state = _STATES[state].get(kind, state)
        place += 1
    return size


def _raw_end(lower: str, name: str, place: int) -> int:
    """Where the end tag of an element of raw text begins; the end of all if there is none. lower: all small letters."""
    mark = f"</{name}"
    while name != "plaintext" and (found := lower.find(mark, place)) >= 0:
        after = lower[found + len(mark) : found + len(mark) + 1]
        if after in ("", ">", "/", *_SPACE):
            return found
        place = found + 1
    return len(lower)


_LOWER = {ord(letter): ord(letter.lower()) for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}  # never changes a length


def _name(document: str, start: int) -> tuple[str, bool]:
    """The name of the tag that begins here, in small letters, and whether it is an end tag; no name: no tag."""
    ends = document.startswith("/", start + 1)
    place = first = start + 1 + ends
    while place < len(document) and document[place] not in " \t\n\r\f/>":
        place += 1
    name = document[first:place] if _letter(document[first : first + 1]) else ""
    return name.lower(), ends


def _letter(character: str) -> bool:
    return character.isascii() and character.isalpha()
