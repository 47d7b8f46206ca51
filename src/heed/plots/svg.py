"""SVG elements and documents: text and its width, shapes, raster maps; and a document as SVG, PNG or PDF.

Enters: numbers, colours, and text of any kind. Leaves: an SVG document as a string; the same drawing always gives the
same one. Knows nothing of attention.

Shapes and texts are elements of an XML tree until the document is serialised, so no text can become markup. A document
has no ids, styles or scripts, so that several fit into one HTML page.
"""

import base64
import math
import re
import struct
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args
from xml.etree.ElementTree import Element, tostring

import numpy as np
from jaxtyping import Float, UInt8

from heed.errors import ConfigError

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


def show_invisible(token: str) -> str:
    """The token with a visible symbol for every invisible character in it."""
    last = len(token) - 1
    signs = (
        character if character in _JOINERS and 0 < index < last else _sign(character)
        for index, character in enumerate(token)
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


def label(token: str, max_width: float, size: float) -> str:
    """The label of a token: without its leading space, invisible characters shown, truncated to `max_width`."""
    has_leading_space = token[:1] == " " and bool(token[1:2].strip())
    return bidi_isolate(fitted(show_invisible(token[has_leading_space:]), max_width, size))


def bidi_isolate(words: str) -> str:
    """The text, within Unicode bidi isolates if any of it runs from right to left."""
    leftward = any(unicodedata.bidirectional(character) in ("R", "AL", "AN") for character in words)
    return f"\u2068{words}\u2069" if leftward else words


def width(words: str, size: float) -> float:
    """The estimated width of a text, in the units of its font size."""
    return size * sum(map(_ems, words))


def _ems(character: str) -> float:
    if width_in_ems := _WIDTHS.get(character):
        return width_in_ems
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


def max_width(some: Iterable[str], size: float) -> float:
    """The width of the widest of some texts."""
    return max(width(words, size) for words in some)


def fitted(words: str, max_width: float, size: float) -> str:
    """The text, truncated to `max_width` with an ellipsis."""
    letters = list(_graphemes(xml_safe(words)))
    if width("".join(letters), size) <= max_width:
        return "".join(letters)
    total = np.cumsum([width(letter, size) for letter in letters]) + width("…", size)
    return "".join(letters[: int(np.searchsorted(total, max_width, side="right"))]) + "…"


def _graphemes(words: str) -> Iterator[str]:
    """The text by graphemes: each letter with its combining marks and joined characters."""
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


def xml_safe(words: str) -> str:
    """Replace what XML does not allow: control characters and unpaired surrogates."""
    return _NO_XML.sub("�", words)


ImageFormat = Literal["svg", "png", "pdf"]

EDGE = 14.0  # around every picture
SMALL = 10.0  # the font size of notes

_FONTS = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"


@dataclass(frozen=True)
class Theme:
    """Background and colours. The opacity of a colour encodes a value, so that zero is the background."""

    background: str | None  # none: transparent
    foreground: str
    positive: str  # the colour of numbers above zero
    negative: str  # the colour of numbers below zero; blue and orange differ for colour-blind readers too


LIGHT = Theme("#ffffff", "#1f2328", "#0a4a8f", "#b34700")
DARK = Theme("#14171c", "#e6e6e6", "#8fc7ff", "#ffb066")
INHERIT = Theme(
    None, "currentColor", "#3587d9", "#d96a15"
)  # for a page, light or dark, whose text colour it takes over


def element(name: str, attributes: Mapping[str, str | float | None], *inside: Element, words: str = "") -> Element:
    """An SVG element. An attribute that is None is left out; numbers are rounded to hundredths."""
    made = Element(name, {key: attribute_text(value) for key, value in attributes.items() if value is not None})
    made.text = xml_safe(words)
    made.tail = "\n"
    made.extend(inside)
    return made


def attribute_text(value: str | float) -> str:
    """The value of an attribute: a string, or a number rounded to hundredths."""
    return xml_safe(value) if isinstance(value, str) else f"{round(value, 2) + 0.0:.10g}"


def path_data(*steps: str | float) -> str:
    """The commands and numbers of an SVG path."""
    return "".join(step if isinstance(step, str) else f"{attribute_text(step)} " for step in steps).rstrip()


def tooltip(words: str) -> Element:
    """A tooltip; must be the first child of its element."""
    return element("title", {}, words=words)


def text(
    x: float,
    y: float,
    words: str,
    size: float,
    anchor: str = "start",
    turn: float = 0.0,
    colour: str | None = None,
    opacity: float | None = None,
) -> Element:
    """Text that starts, is centred or ends at a point, vertically centred, and rotated around that point."""
    position = {"x": x, "y": y + 0.36 * size, "font-size": size}  # renderers differ on dominant-baseline
    look = {
        "text-anchor": None if anchor == "start" else anchor,
        "transform": f"rotate({attribute_text(turn)} {attribute_text(x)} {attribute_text(y)})" if turn else None,
        "fill": colour,
        "fill-opacity": opacity,
    }
    return element("text", {**position, **look}, words=words)


def small_text(x: float, y: float, words: str, anchor: str = "start", turn: float = 0.0) -> Element:
    return text(x, y, words, SMALL, anchor, turn, opacity=0.7)


def token_text(
    x: float, y: float, token: str, shown: str, size: float, anchor: str = "start", turn: float = 0.0
) -> Element:
    """The label of a token, with the whole token as a tooltip if it was truncated."""
    whole, words = bidi_isolate(show_invisible(token)), text(x, y, shown, size, anchor, turn)
    return words if shown == whole else element("g", {}, tooltip(whole), words)


def panel_background(x: float, y: float, across: float, height: float) -> Element:
    """A faint background behind a map, so that zeros are visible."""
    return element("rect", {"x": x, "y": y, "width": across, "height": height, "fill-opacity": 0.05})


def raster_image(
    x: float, y: float, unit: tuple[float, float], shares: Float[np.ndarray, "rows columns"], theme: Theme
) -> Element:
    """A heat map of values from -1 to 1 as a PNG inside the SVG, which is many times smaller than shapes."""
    rows, columns = shares.shape
    colours = np.array([list(bytes.fromhex(colour[1:])) for colour in (theme.positive, theme.negative)])
    opacity = np.rint(np.rint(100 * np.abs(shares)) * 2.55)  # in percent, so that a palette of 256 colours is enough
    pixels = np.concatenate([colours[(shares < 0).astype(int)], opacity[..., None]], axis=-1).astype(np.uint8)
    frame = {"x": x, "y": y, "width": columns * unit[0], "height": rows * unit[1]}
    look = {"preserveAspectRatio": "none", "image-rendering": "pixelated"}
    data = "data:image/png;base64," + base64.b64encode(_png(pixels)).decode()
    return element("image", {**frame, **look, "href": data})


def _png(pixels: UInt8[np.ndarray, "rows columns 4"]) -> bytes:
    """A PNG with a palette, of at most 256 colours."""
    rows, columns, _ = pixels.shape
    colours, numbers = np.unique(pixels.reshape(-1, 4), axis=0, return_inverse=True)
    lines = np.pad(numbers.reshape(rows, columns), ((0, 0), (1, 0)))  # each row begins with its filter: none
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0),
        b"PLTE": colours[:, :3].tobytes(),
        b"tRNS": colours[:, 3].tobytes(),
        b"IDAT": zlib.compress(lines.astype(np.uint8).tobytes(), 9),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks.items()
    )


def color_bar(x: float, y: float, span: tuple[float, float], theme: Theme) -> tuple[list[Element], float]:
    """A colour bar with its numbers, and its right edge."""
    low, high = (format_number(float(f"{number:.2g}")) for number in span)
    start = float(math.ceil(x + width(low, SMALL) + 5))
    shares = np.linspace(span[0] / span[1], 1, 50)[None]
    bar = [panel_background(start, y - 4, 100.0, 8.0), raster_image(start, y - 4, (2.0, 8.0), shares, theme)]
    return [small_text(x, y, low), *bar, small_text(start + 105, y, high)], start + 105 + width(high, SMALL)


def format_number(number: float) -> str:
    """A number as text: 1,000, −0.5, 0.00002; with an exponent only below 1e-6."""
    small = 1e-6 <= abs(number) < 1e-4
    shown = np.format_float_positional(number, 9, fractional=False, trim="-") if small else f"{number:,.9g}"
    return shown.replace("-", "−")


def content_top(title: str) -> float:
    """The y coordinate below the title, or of the top edge if there is none."""
    return EDGE + 30 * bool(title)


def svg_document(corner: tuple[float, float], title: str, theme: Theme, parts: Iterable[Element]) -> str:
    """The SVG document of these parts. corner: their right and lower edge; a long title may widen it."""
    right = max(corner[0], min(EDGE + width(title, 15.0), 560.0))
    across, down = float(math.ceil(right + EDGE)), float(math.ceil(corner[1] + EDGE))
    frame: dict[str, str | float | None] = {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": f"0 0 {attribute_text(across)} {attribute_text(down)}",
        "width": across,
        "height": down,
        "role": "img",
        "font-family": _FONTS,
        "fill": theme.foreground,
        "image-rendering": "optimizeSpeed",  # what vl-convert takes for pixelated
    }
    ground = element("rect", {"width": across, "height": down, "fill": theme.background})
    heading = text(EDGE, EDGE + 8, fitted(title, right - EDGE, 15.0), 15.0)
    under = [tooltip(title)] * bool(title) + [ground] * bool(theme.background) + [heading] * bool(title)
    return tostring(element("svg", frame, *under, *parts), encoding="unicode")


def image_format(path: Path) -> ImageFormat:
    """The image format by the suffix of a path."""
    for name in get_args(ImageFormat):
        if path.suffix == f".{name}":
            return name
    raise ConfigError(f"{path} ends in {path.suffix or 'nothing'}: expected .{', .'.join(get_args(ImageFormat))}")


def render(svg: str, kind: ImageFormat, scale: float = 2.0) -> bytes:
    """The document as the bytes of a file; scale: pixels per unit of a PNG."""
    if kind == "svg":
        return svg.encode()
    try:
        import vl_convert  # noqa: PLC0415 - 90 MB; a few platforms have no wheel of it
    except ModuleNotFoundError:
        needs = f"a {kind.upper()} needs vl-convert-python, which is not installed"
        raise ConfigError(f"{needs}: pip install vl-convert-python, or write an SVG instead") from None
    return vl_convert.svg_to_png(svg, scale=scale) if kind == "png" else vl_convert.svg_to_pdf(svg)
