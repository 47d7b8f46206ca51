"""HTML to the texts in it, and back with other texts in their places; every other character stays as it is.

Tags, attributes, comments and declarations are never touched, nor is what stands in elements that hold no prose
(`script`, `style`, `code` and the like) or that are marked `translate="no"` or `class="notranslate"`. Each text between
two tags is a text of its own: a sentence that an inline tag runs through is translated in parts, and its white space
at both ends is kept. A text comes out with `&lt;` read as `<`, and goes back with `<` written as `&lt;`: what was
escaped stays escaped, and no translation can become a tag. A text that is not changed goes back as it was written.

`html_tokens` tells tags from text. Which element a text is in is found as browsers find it: end tags that are left out
(`<li>`, `<p>`, `<td>`), and end tags that close what is within them, count as written. What looks like an unfinished
tag at the end is left alone.
"""

import html
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from heed.serving.html_tokens import Tag, comment_end, lowered, raw_text_end, tag_at


def _names(names: str) -> frozenset[str]:
    return frozenset(names.split())


# Nothing within these is a tag but their own end tag. Of their texts only a title is prose.
_RAW = _names("script style xmp iframe noembed noframes textarea title plaintext")
_NO_PROSE = _names("code pre listing kbd samp var svg math template")
_VOID = _names("area base basefont bgsound br col embed frame hr img input keygen link meta param source track wbr")
_FOREIGN = _names("svg math")
_HTML_IN_FOREIGN = _names("foreignobject desc title mi mo mn ms mtext annotation-xml")  # "integration points"
_ENDS_FOREIGN = _names(
    "b big blockquote body br center code dd div dl dt em embed h1 h2 h3 h4 h5 h6 head hr i img li listing menu meta "
    "nobr ol p pre ruby s small span strong strike sub sup table tt u ul var"
)
# What a start tag closes although no end tag says so, and where the search for it ends.
_SCOPE = _names("html table td th caption template object marquee applet svg math foreignobject")
_TABLE_PARTS = _names("table tr td th caption tbody thead tfoot colgroup")
_ENDS_P = _names(
    "address article aside blockquote center dd details dialog dir div dl dt fieldset figcaption figure footer form h1 "
    "h2 h3 h4 h5 h6 header hgroup hr li listing main menu nav ol p plaintext pre search section summary table ul xmp"
)
_FORMATTING = _names("a b big code em font i nobr s small strike strong tt u")
_ROWS = _names("tr tbody thead tfoot caption colgroup")
_CLOSES: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "li": (_names("li"), _SCOPE | _names("ul ol menu")),
    **dict.fromkeys(("dt", "dd"), (_names("dt dd"), _SCOPE | _names("dl"))),
    **dict.fromkeys(("td", "th"), (_names("td th"), _names("tr table template"))),
    "tr": (_names("tr caption colgroup"), _names("tbody thead tfoot table template")),
    **dict.fromkeys(("tbody", "thead", "tfoot"), (_ROWS, _names("table template"))),
    "option": (_names("option"), _SCOPE | _names("select optgroup datalist")),
    "optgroup": (_names("option optgroup"), _SCOPE | _names("select")),
    **dict.fromkeys(("rt", "rp"), (_names("rt rp"), _SCOPE | _names("ruby"))),
    "a": (_names("a"), _SCOPE),
    "button": (_names("button"), _SCOPE),
}
_DEEPEST = 512  # elements that a tag may close at once: no document makes it slow; browsers nest no deeper


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
    """A document in parts; joined with the texts it has, `joined` gives the same one."""
    found: list[Part] = []
    elements, lower = _Elements(), lowered(document)
    begun = place = 0  # where the text that is being read begins, and how far it has been read
    while (start := document.find("<", place)) >= 0:
        tag = tag_at(document, start)
        end = tag.end if tag else comment_end(document, start, is_foreign=elements.are_foreign)
        if end == start:  # a < that is text
            place = start + 1
            continue
        found += elements.text(document[begun:start]), Part(document[start:end])
        begun = place = end
        if tag is not None and elements.holds_raw_text_after(tag):
            begun = place = raw_text_end(lower, tag.name, end)
            raw = document[end:begun]
            found.append(elements.text(raw) if tag.name == "title" else Part(raw))
    found.append(elements.text(document[begun:]))
    return [part for part in found if part.raw]


def joined(cut: Sequence[Part], texts: Sequence[str]) -> str:
    """The document with these in the place of its texts, in order."""
    new = iter(texts)
    return "".join(part.raw if part.text is None else _written(part, next(new)) for part in cut)


def _written(part: Part, text: str) -> str:
    return part.raw if text == part.text else html.escape(f"{part.before}{text}{part.after}", quote=False)


@dataclass(frozen=True)
class _Element:
    name: str
    is_prose: bool
    is_foreign: bool  # what stands in it is SVG or MathML


class _Elements:
    """The elements that are open at some point of a document, the innermost last."""

    def __init__(self) -> None:
        self._open = [_Element("", is_prose=True, is_foreign=False)]
        self._names = Counter[str]()  # of those that are open: most tags close nothing, and need no search

    @property
    def are_foreign(self) -> bool:
        """Whether we are in SVG or MathML."""
        return self._open[-1].is_foreign

    def text(self, raw: str) -> Part:
        """A text that stands here."""
        return Part.prose(raw) if self._open[-1].is_prose else Part(raw)

    def holds_raw_text_after(self, tag: Tag) -> bool:
        """Take note of a tag; whether what follows is raw text, in which only the end tag counts."""
        if tag.is_end:
            self._end(tag.name)
            return False
        if self.are_foreign and tag.name in _ENDS_FOREIGN:
            while self.are_foreign:
                self._names[self._open.pop().name] -= 1
        is_foreign = self.are_foreign or tag.name in _FOREIGN
        if not is_foreign:
            self._close_implied(tag.name)
        if not is_foreign and tag.name in _VOID:
            return False
        if tag.is_empty and (is_foreign or tag.name in _NO_PROSE):
            return False
        self._names[tag.name] += 1
        self._open.append(
            _Element(tag.name, self._is_prose(tag), is_foreign=is_foreign and tag.name not in _HTML_IN_FOREIGN)
        )
        return not is_foreign and tag.name in _RAW

    def _is_prose(self, tag: Tag) -> bool:
        """By its own mark, else by its kind, else as what it is in."""
        wish = tag.attributes.get("translate", "none").lower()
        if wish == "no" or "notranslate" in tag.attributes.get("class", "").split():
            return False
        return wish in ("", "yes") or (self._open[-1].is_prose and tag.name not in _NO_PROSE)

    def _close_implied(self, name: str) -> None:
        if name in _ENDS_P:
            self._close(("p",), _SCOPE | {"button"})
        if name in _CLOSES:
            self._close(*_CLOSES[name])

    def _end(self, name: str) -> None:
        if name in _TABLE_PARTS:
            self._close((name,), _names("table template"))
        else:  # </span> does not end a paragraph, but </b> and </div> do
            self._close((name,), _SCOPE if name in _ENDS_P or name in _FORMATTING else _SCOPE | _ENDS_P)

    def _close(self, names: Collection[str], within: Collection[str]) -> None:
        """Close the innermost element of these names, and all in it, unless one of `within` stands between."""
        if not any(self._names[name] for name in names):
            return
        for number in range(len(self._open) - 1, max(0, len(self._open) - _DEEPEST), -1):
            if (name := self._open[number].name) in names:
                self._names.subtract(element.name for element in self._open[number:])
                del self._open[number:]
                return
            if name in within:
                return
