"""HTML to the texts in it, and back with other texts in their place; every other character stays as it is.

Tags, attributes, comments and declarations are never changed, nor is the content of elements that hold no prose
(`script`, `style`, `code` and the like) or that are marked `translate="no"` or `class="notranslate"`. Each text between
two tags is translated on its own: a sentence that an inline tag runs through is translated in parts, and the white
space at both ends is kept. A text leaves with `&lt;` decoded to `<` and goes back with `<` encoded as `&lt;`: what was
escaped stays escaped, and no translation can become a tag. An unchanged text goes back exactly as it was written.

Tags are told from text by the tokenizer of the HTML standard (https://html.spec.whatwg.org, 13.2.5), and the element
that a text is in is found as browsers find it: omitted end tags (`<li>`, `<p>`, `<td>`) and end tags that close what is
nested in them count as written. An unfinished tag at the end of a document is left alone. Every scan goes forward over
the characters once and no regular expression backtracks, so no document is slow.

No library does this: `html.parser` disagrees with Chromium on 237 of the 1,156 documents of the tests and is quadratic
in releases of Python that heed supports; `selectolax` and `lxml` give no source offsets, so markup would be rewritten.
"""

import html
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
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
    """A part of a document: markup as it stands, or a text with the white space around it."""

    raw: str
    text: str | None = None  # to be translated, without entities
    before: str = ""
    after: str = ""

    @classmethod
    def prose(cls, raw: str) -> "Part":
        """The text between two tags."""
        text = html.unescape(raw)
        inner = text.strip()
        if not inner:
            return cls(raw)
        start = text.index(inner)
        return cls(raw, inner, text[:start], text[start + len(inner) :])


def parts(document: str) -> list[Part]:
    """Split a document; `joined(parts(document), its own texts)` is the document again, byte for byte."""
    found: list[Part] = []
    elements, lower = _Elements(), _lowered(document)
    begun = offset = 0  # where the current text begins, and how far it has been scanned
    while (start := document.find("<", offset)) >= 0:
        tag = _tag_at(document, start)
        end = tag.end if tag else _comment_end(document, start, is_foreign=elements.are_foreign)
        if end == start:  # a < that is text
            offset = start + 1
            continue
        found += elements.text(document[begun:start]), Part(document[start:end])
        begun = offset = end
        if tag is not None and elements.holds_raw_text_after(tag):
            begun = offset = _raw_text_end(lower, tag.name, end)
            raw = document[end:begun]
            found.append(elements.text(raw) if tag.name == "title" else Part(raw))
    found.append(elements.text(document[begun:]))
    return [part for part in found if part.raw]


def joined(cut: Sequence[Part], texts: Sequence[str]) -> str:
    """The document with `texts` instead of its own, in order."""
    new = iter(texts)
    return "".join(part.raw if part.text is None else _written(part, next(new)) for part in cut)


def _written(part: Part, text: str) -> str:
    return part.raw if text == part.text else html.escape(f"{part.before}{text}{part.after}", quote=False)


@dataclass(frozen=True)
class _Tag:
    """A start tag or an end tag; `end` is the offset after its `>`."""

    name: str  # in small letters
    is_end: bool
    is_empty: bool  # written with />
    attributes: Mapping[str, str]  # names in small letters, values without entities
    end: int


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
        """Whether the innermost open element is SVG or MathML."""
        return self._open[-1].is_foreign

    def text(self, raw: str) -> Part:
        """A text in the innermost open element."""
        return Part.prose(raw) if self._open[-1].is_prose else Part(raw)

    def holds_raw_text_after(self, tag: _Tag) -> bool:
        """Open or close elements for a tag; True if raw text follows, in which only the end tag counts."""
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

    def _is_prose(self, tag: _Tag) -> bool:
        """Decided by the element's own mark, else by its name, else by its parent."""
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


def _lowered(text: str) -> str:
    """ASCII letters in lower case, as HTML compares names; the length never changes."""
    return text.lower() if text.isascii() else text.translate(_LOWER)


def _tag_at(document: str, start: int) -> _Tag | None:
    """The tag that begins with the `<` at this offset, if one does; one that is not finished goes to the end."""
    is_end = document.startswith("/", start + 1)
    offset = start + 1 + is_end
    first = document[offset : offset + 1]
    if not (first.isascii() and first.isalpha()):
        return None
    offset, name = _read(_NAME, document, offset)
    attributes: dict[str, str] = {}
    while True:
        offset, gap = _read(_GAP, document, offset)
        if document.startswith(">", offset) or offset == len(document):
            after = min(offset + 1, len(document))
            return _Tag(_lowered(name), is_end, gap.endswith("/"), attributes, after)
        offset, key = _read(_ATTRIBUTE, document, offset)
        offset, value = _value(document, offset)
        attributes.setdefault(_lowered(key), html.unescape(value))


def _value(document: str, offset: int) -> tuple[int, str]:
    """What follows an attribute's name: the offset after its value, and the value."""
    after, _ = _read(_SPACE, document, offset)
    if not document.startswith("=", after):
        return offset, ""
    offset, _ = _read(_SPACE, document, after + 1)
    quote = document[offset : offset + 1]
    if quote not in ('"', "'"):
        return _read(_UNQUOTED, document, offset)
    closing = document.find(quote, offset + 1)
    end = len(document) if closing < 0 else closing
    return min(end + 1, len(document)), document[offset + 1 : end]


def _read(pattern: re.Pattern[str], document: str, offset: int) -> tuple[int, str]:
    found = pattern.match(document, offset)
    return (found.end(), found.group()) if found else (offset, "")


def _comment_end(document: str, start: int, *, is_foreign: bool) -> int:
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


def _raw_text_end(lower: str, name: str, start: int) -> int:
    """Where the end tag of the raw element whose content begins here stands. lower: the document, `_lowered`."""
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
