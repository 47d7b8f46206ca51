import base64
import hashlib
import io
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from heed.errors import ConfigError, InputError
from heed.plots.chart import curve, distance_curve
from heed.plots.curves import curves_from_journal, draw
from heed.plots.figures import (
    dots_by_distance,
    head_grid,
    head_lines,
    heat_map,
    position_picture,
    signed_heat_map,
)
from heed.plots.svg import DARK, INHERIT, LIGHT, Theme, element, fitted, label, render, show_invisible, width

SVG = "{http://www.w3.org/2000/svg}"
ENGLISH = " The, animal, did, not, cross, the, street, because, it, was, too, tired,.,</s>".split(",")  # noqa: SIM905
GERMAN = "<s>; Das; Tier; überquerte; die; Straße; nicht;,; weil; es; zu; müde; war;.".split(";")  # noqa: SIM905
HOSTILE = [
    "</svg><script>alert(1)</script>",
    "<!--",
    "]]>",
    "\"'&amp;",
    "\u202eevil",
    "\u200f",
    "שלום!",
    "\n",
    "\x00\x1b[31m",
    "\ud800",
    "\uffff",
    "e" + "\u0301" * 40,
    "\u0301",
    "",
    "自然语言处理" * 9,
    "👩\u200d🌾",
]

# The advance width of each of these characters, in 2048ths of an em.
DEJAVU_SANS = {563: "'", 569: "il", 651: " ,.", 803: "t", 821: "!", 842: "r", 1067: "s", 1126: "c", 1186: "k"}
DEJAVU_SANS |= {1251: "T", 1253: "oö", 1255: "a", 1260: "e", 1290: "ß", 1298: "hnuü", 1300: "Sbdgq", 1995: "m"}
DEJAVU_SANS |= {1303: "0123456789"}

tokens = st.lists(st.text(st.characters(), max_size=30) | st.sampled_from(HOSTILE), min_size=1, max_size=6)


def softmax(*shape: int) -> np.ndarray:
    exponentials = np.exp(3 * np.random.default_rng(0).normal(size=shape))
    return exponentials / exponentials.sum(-1, keepdims=True)


def sinusoids(positions: int, depth: int) -> np.ndarray:
    angle = np.arange(positions)[:, None] * 10_000 ** (-np.arange(0, depth, 2) / depth)
    return np.stack([np.sin(angle), np.cos(angle)], -1).reshape(positions, depth)


STEPS = np.arange(1.0, 301.0)
LOSSES = {
    "training": (STEPS, 2 + 6 * np.exp(-STEPS / 50)),
    "validation": (STEPS[::30], 2.1 + 6 * np.exp(-STEPS[::30] / 50)),
    "with gaps": (STEPS[:4], np.array([5.0, np.nan, 4.0, 3.0])),
}


def training_curves(names: list[str], theme: Theme) -> str:
    entries: list[dict[str, Any]] = []
    for step, loss in zip(STEPS, LOSSES["training"][1], strict=True):
        entries.append({"step": int(step), "loss": float(loss), "rate": 1e-3 / step, "seconds": 0.5})
        if step % 30 == 0:
            entries.append({"step": int(step), "validation_loss": float(loss) + 0.1, "bleu": 40 - float(loss)})
    return draw(
        [curves_from_journal(name, entries[: len(entries) - 9 * number]) for number, name in enumerate(names)],
        "steps",
        theme,
    )


def all_pictures(rows: list[str], columns: list[str], title: str, theme: Theme = LIGHT) -> dict[str, str]:
    weights = softmax(2, 3, len(rows), len(columns))
    return {
        "heat_map": heat_map(weights[0, 0], rows, columns, title, theme=theme),
        "signed_heat_map": signed_heat_map(weights[0, 1] - 0.3, rows, columns, title, theme),
        "head_grid": head_grid(weights, rows, columns, title, theme=theme),
        "head_lines": head_lines(weights[1, 0], rows, columns, title, theme=theme),
        "position_picture": position_picture(sinusoids(20, 16), title, theme),
        "distance_curve": distance_curve(dots_by_distance(sinusoids(20, 16)), title, theme),
        "curve": curve({**LOSSES, title or "untitled": LOSSES["training"]}, "step", "loss", title, theme),
        "training": training_curves([title], theme),
        "trainings": training_curves([*rows, *columns], theme),
    }


PICTURES = all_pictures(GERMAN, ENGLISH, "Layer 2, head 3")


def parsed(svg: str) -> Element:
    return ElementTree.fromstring(svg.encode())  # noqa: S314 - our own


def svg_texts(svg: Element) -> list[str]:
    return [(text.text or "").strip("\u2068\u2069") for text in svg.iter(f"{SVG}text")]


def shapes_in(svg: Element, name: str, kind: str) -> list[Element]:
    (group,) = (group for group in svg.iter(f"{SVG}g") if group.get("class") == name)
    return group.findall(f"{SVG}{kind}")


def numbers(shape: Element, *names: str) -> list[float]:
    return [float(shape.get(name, "0")) for name in names]


def tooltip(shape: Element) -> str:
    return shape.findtext(f"{SVG}title") or ""


def pixels(image: Element) -> np.ndarray:
    """The RGBA values of an embedded image, from 0 to 1, decoded by Pillow."""
    data = base64.b64decode(image.attrib["href"].removeprefix("data:image/png;base64,"))
    with Image.open(io.BytesIO(data)) as picture:
        return np.asarray(picture.convert("RGBA")) / 255


def path_points(path: str) -> Iterator[tuple[float, float]]:
    """The points on a path."""
    x = y = 0.0
    for letter, rest in re.findall("([MLCHVhvaz])([^MLCHVhvaz]*)", path):
        given = [float(number) for number in rest.split()]
        if letter == "a":
            yield from ((x, y - given[0]), (x, y + given[0]))
        if letter in "MLC":
            yield from zip(given[:-2:2], given[1:-2:2], strict=True)
            x, y = given[-2:]
        elif letter == "H":
            (x,) = given
        elif letter == "V":
            (y,) = given
        elif letter != "z":
            across, down = {"h": (*given, 0), "v": (0, *given), "a": given[-2:]}[letter]
            x, y = x + across, y + down
        yield x, y


def text_box(text: Element) -> tuple[float, np.ndarray]:
    """The rotation of a text in degrees; its left, top, right and bottom before rotation."""
    x, y, size = numbers(text, "x", "y", "font-size")
    across = width(text.text or "", size)
    left = x - across * {"start": 0, "middle": 0.5, "end": 1}[text.get("text-anchor", "start")]
    turn = re.match(r"rotate\((\S+) ", text.get("transform", ""))
    return float(turn[1]) if turn else 0.0, np.array([left, y - 0.8 * size, left + across, y + 0.15 * size])


def corners(text: Element) -> list[tuple[float, float]]:
    turn, (left, top, right, bottom) = text_box(text)
    x, y = (float(part) for part in re.findall(r"[\d.]+", text.get("transform", "rotate(0 0 0)"))[1:])
    slope = complex(math.cos(math.radians(turn)), math.sin(math.radians(turn)))
    turned = [(complex(a, b) - complex(x, y)) * slope + complex(x, y) for a in (left, right) for b in (top, bottom)]
    return [(point.real, point.imag) for point in turned]


def extent(svg: Element) -> np.ndarray:
    """The corner points of all shapes and texts."""
    points: list[tuple[float, float]] = []
    for shape in svg.iter():
        if shape.tag in (f"{SVG}rect", f"{SVG}image"):
            x, y, across, height = numbers(shape, "x", "y", "width", "height")
            points += [(x, y), (x + across, y + height)]
        elif shape.tag == f"{SVG}path":
            points += path_points(shape.attrib["d"])
        elif shape.tag == f"{SVG}text":
            points += corners(shape)
    return np.array(points)


def overlapping(svg: Element) -> list[tuple[str | None, str | None]]:
    """Pairs of texts of the same rotation that overlap."""
    boxes = []
    for text in svg.iter(f"{SVG}text"):
        turn, box = text_box(text)
        x, y = numbers(text, "x", "y")
        slope = complex(math.cos(math.radians(turn)), -math.sin(math.radians(turn)))
        shift = complex(x, y) * slope - complex(x, y)  # the position with the rotation undone
        boxes.append((turn, box + [shift.real, shift.imag] * 2, text.text))
    return [
        (first[2], second[2])
        for first, second in combinations(boxes, 2)
        if first[0] == second[0] and (first[1][:2] < second[1][2:]).all() and (second[1][:2] < first[1][2:]).all()
    ]


@settings(max_examples=15, deadline=None)
@given(tokens, tokens, st.text(st.characters(), max_size=80))
def test_no_text_becomes_markup_leaves_the_picture_or_overlaps_another(
    rows: list[str], columns: list[str], title: str
) -> None:
    tags = {"svg", "g", "title", "text", "rect", "path", "image"}
    for name, picture in all_pictures(rows, columns, title).items():
        svg = parsed(picture)
        assert {shape.tag.removeprefix(SVG) for shape in svg.iter()} <= tags
        assert not overlapping(svg), name
        points, (_, _, right, bottom) = extent(svg), map(float, svg.attrib["viewBox"].split())
        assert (points >= 0).all(), name
        assert (points <= [right, bottom]).all(), name
        if name in ("heat_map", "signed_heat_map", "head_lines"):
            labels = [label(token, 130.0, 13.0).strip("\u2068\u2069") for token in (*rows, *columns)]
            assert sorted(labels) == sorted(svg_texts(svg)[bool(title) :][: len(labels)])


@pytest.mark.parametrize("name", PICTURES)
def test_nothing_is_drawn_outside_the_margins_and_no_texts_overlap(name: str) -> None:
    svg = parsed(PICTURES[name])
    _, _, right, bottom = map(float, svg.attrib["viewBox"].split())
    points = extent(svg)[2:]  # without the background, which comes first
    assert (points >= 10).all()
    assert (points <= [right - 10, bottom - 10]).all()
    assert not overlapping(svg)


def test_sixty_long_tokens_fit() -> None:
    long = [f" Überschwemmung{number}" for number in range(60)]
    svg = parsed(heat_map(softmax(60, 60), long, long))
    assert not overlapping(svg)
    assert set(svg_texts(svg)) >= {token.strip() for token in long}
    assert float(svg.attrib["width"]) < 1000


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (" dog", "dog"),
        ("  dog", "␣␣dog"),
        (" ", "␣"),
        ("a b\u00a0", "a␣b␣"),
        ("\u3000", "␣"),
        ("\n", "⏎"),
        ("\t", "⇥"),
        ("\r", "‹000D›"),
        ("\u200f", "‹200F›"),
        ("\ud800", "‹D800›"),
        ("\u200d", "‹200D›"),
        ("می\u200cخواهم", "\u2068می\u200cخواهم\u2069"),
        ("\u0301", "◌\u0301"),
        ("e" + "\u0301" * 9, "e\u0301\u0301\u0301"),
        ("", "∅"),
        ("שלום!", "\u2068שלום!\u2069"),
        ("antidisestablishmentarianism", "antidisestab…"),
        ("自然语言处理自然语言处理", "自然语言处理…"),
    ],
)
def test_a_token_is_shown_with_visible_spaces_and_control_characters(token: str, expected: str) -> None:
    assert label(token, 75.0, 10.0) == expected


def test_the_tooltip_of_a_truncated_token_has_all_of_it() -> None:
    long_token = "antidisestablishmentarianism" * 2
    svg = parsed(heat_map(np.ones((1, 1)), [long_token], [" dog"]))
    assert [tooltip(group) for group in svg.findall(f"{SVG}g") if group.get("class") is None] == [long_token, "␣dog"]


@pytest.mark.parametrize(
    "text", ["The animal didn't cross the street", "Straßenüberquerungsmöglichkeiten!", "0123,456.789"]
)
def test_estimated_text_widths_are_close_upper_bounds(text: str) -> None:
    advances = {character: advance for advance, some in DEJAVU_SANS.items() for character in some}
    true = 10 * sum(advances[character] for character in text) / 2048
    assert true <= width(text, 10.0) <= 1.1 * true
    sheet = parsed(heat_map(np.ones((1, 1)), ["a"], ["b"], theme=INHERIT))
    sheet[:] = [element(f"{SVG}text", {"x": 5.0, "y": 30.0, "font-size": 20.0}, words=text)]
    for name, size in (("width", "900"), ("height", "40"), ("viewBox", "0 0 900 40"), ("fill", "black")):
        sheet.set(name, size)
    with Image.open(io.BytesIO(render(ElementTree.tostring(sheet, "unicode"), "png", 1.0))) as picture:
        left, _, right, _ = picture.getchannel("A").getbbox() or (0, 0, 0, 0)
    assert 0.7 * width(text, 20.0) <= right - left <= width(text, 20.0)


@given(st.text(st.characters(), max_size=40), st.floats(10.0, 200.0))
def test_fitted_text_is_no_wider_than_the_maximum(svg_texts: str, room: float) -> None:
    assert width(fitted(show_invisible(svg_texts), room, 10.0), 10.0) <= room


def test_the_same_numbers_give_the_same_bytes_in_another_process_and_without_torch() -> None:
    program = (
        "import hashlib, sys, numpy as np; from heed.plots.figures import head_grid;"
        "assert 'torch' not in sys.modules;"
        "picture = head_grid(np.arange(36.0).reshape(2, 2, 3, 3), 'abc', 'def', 'x');"
        "print(hashlib.sha256(picture.encode()).hexdigest())"
    )
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    picture = head_grid(np.arange(36.0).reshape(2, 2, 3, 3), "abc", "def", "x")
    assert other.stdout.strip() == hashlib.sha256(picture.encode()).hexdigest()
    assert all_pictures(GERMAN, ENGLISH, "Layer 2, head 3") == PICTURES


def test_a_heat_map_has_a_cell_per_weight_whose_tooltip_names_row_and_column() -> None:
    weights = softmax(2, 3)
    cells = shapes_in(parsed(heat_map(weights, ["Hund", " Katze"], ["the", " dog", " cat"])), "cells", "rect")
    pairs = [(row, column) for row in ("Hund", "Katze") for column in ("the", "dog", "cat")]
    expected = [f"{row} → {column}: {weight:.3g}" for (row, column), weight in zip(pairs, weights.flat, strict=True)]
    assert [tooltip(cell) for cell in cells] == expected
    coordinates = np.array([numbers(cell, "x", "y") for cell in cells]).reshape(2, 3, 2)
    assert (np.diff(coordinates[..., 0], axis=1) > 0).all()
    assert (np.diff(coordinates[..., 1], axis=0) > 0).all()


def test_opacity_grows_with_the_weight() -> None:
    weights = np.linspace(0, 0.8, 100).reshape(10, 10)
    cells = shapes_in(parsed(heat_map(weights, "abcdefghij", "abcdefghij")), "cells", "rect")
    opacities = [float(cell.attrib["fill-opacity"]) for cell in cells]
    assert opacities == sorted(opacities)
    assert (opacities[0], opacities[-1]) == (0, 1)
    assert len(set(opacities)) == 100
    (opacity, scale) = (pixels(image)[..., 3] for image in parsed(head_grid(weights[None, None])).iter(f"{SVG}image"))
    assert opacity.shape == (10, 10)
    np.testing.assert_allclose(opacity, weights / 0.8, atol=0.0075)
    assert (np.diff(scale[0]) > 0).all()


def test_top_sets_the_value_of_full_opacity_and_is_on_the_scale() -> None:
    svg = parsed(heat_map(np.array([[0.2, 0.5]]), ["a"], ["b", "c"], top=0.4))
    assert [cell.get("fill-opacity") for cell in shapes_in(svg, "cells", "rect")] == ["0.5", "1"]
    assert svg_texts(svg)[-2:] == ["0", "0.4"]


def test_a_signed_heat_map_shows_sign_by_colour_and_size_by_opacity() -> None:
    svg = parsed(signed_heat_map(np.array([[-2.0, 0.0, 1.0]]), ["Hund"], ["the", "dog", "cat"]))
    cells = shapes_in(svg, "cells", "rect")
    assert [(cell.get("fill"), cell.get("fill-opacity")) for cell in cells] == [
        (LIGHT.negative, "1"),
        (None, "0"),
        (None, "0.5"),
    ]
    assert [tooltip(cell) for cell in cells] == ["Hund without the: -2", "Hund without dog: +0", "Hund without cat: +1"]
    assert svg_texts(svg)[-2:] == ["−2", "2"]


def test_a_head_grid_shows_the_weights_of_each_head_and_is_small() -> None:
    weights = softmax(6, 8, 30, 30)
    long = [f" Überschwemmung{number}" for number in range(30)]
    picture = head_grid(weights, long, long)
    assert len(picture.encode()) < 250_000
    assert len(head_grid(weights).encode()) < 100_000
    svg = parsed(picture)
    heads = [group for group in svg.findall(f"{SVG}g") if group.get("class") == "head"]
    assert [tooltip(head) for head in heads] == [f"layer {n // 8 + 1}, head {n % 8 + 1}" for n in range(48)]
    for head, head_weights in zip(heads, weights.reshape(48, 30, 30), strict=True):
        (image,) = head.iter(f"{SVG}image")
        np.testing.assert_allclose(pixels(image)[..., 3], head_weights / weights.max(), atol=0.0075)
    rows = [tooltip(row) for row in heads[9].iter(f"{SVG}path")]
    best = int(weights[1, 1, 4].argmax())
    assert rows[4].startswith(
        f"{label(long[4], 50.0, 10.0)} → {label(long[best], 50.0, 10.0)} {weights[1, 1, 4, best]:.2f}, "
    )


def test_lines_connect_each_token_to_those_it_attends_to_with_the_strongest_on_top() -> None:
    weights = np.array([[0.7, 0.3, 0.0], [0.001, 0.5, 0.499]])
    svg = parsed(head_lines(weights, ["a", "b"], ["x", "y", "z"]))
    lines = shapes_in(svg, "lines", "path")
    assert [tooltip(line) for line in lines] == ["a → y: 0.3", "b → z: 0.499", "b → y: 0.5", "a → x: 0.7"]
    assert [line.get("stroke-opacity") for line in lines] == ["0.43", "0.71", "0.71", "1"]
    heights = {text.text: text_box(text)[1][[1, 3]].mean() for text in svg.iter(f"{SVG}text")}
    for line in lines:
        points = list(path_points(line.attrib["d"]))
        row, _, column = tooltip(line).partition(":")[0].split()
        assert points[0][1] == pytest.approx(heights[row], abs=1)
        assert points[-1][1] == pytest.approx(heights[column], abs=1)


def test_a_position_picture_shows_value_as_opacity_and_sign_as_colour() -> None:
    codes = sinusoids(50, 64)
    image = pixels(next(parsed(position_picture(codes)).iter(f"{SVG}image")))
    np.testing.assert_allclose(image[..., 3], np.abs(codes), atol=0.0075)
    blue = image[..., 2] > image[..., 0]
    assert (blue == (codes >= 0))[image[..., 3] > 0].all()


def test_the_dot_product_of_sinusoids_depends_on_the_distance_alone() -> None:
    frequencies = 10_000 ** (-np.arange(0, 32, 2) / 32)
    expected = np.cos(np.arange(40)[:, None] * frequencies).sum(-1)
    np.testing.assert_allclose(dots_by_distance(sinusoids(40, 32)), expected)


def test_a_curve_goes_through_its_points_and_is_named_at_its_end() -> None:
    svg = parsed(curve(LOSSES, "step", "loss"))
    lines = [path.attrib["d"] for path in svg.iter(f"{SVG}path") if path.get("class") == "line"]
    assert [line.count("M") for line in lines] == [1, 1, 1]
    (dot,) = (path.attrib["d"] for path in svg.iter(f"{SVG}path") if path.get("class") == "dots line")
    assert dot.count("M") == 1  # the point before the gap, which has no neighbours
    points, (x, y) = np.array(list(path_points(lines[0]))), LOSSES["training"]
    for axis, true in zip(points.T, (x, y), strict=True):
        slope, offset = np.polyfit(true, axis, 1)
        np.testing.assert_allclose(slope * true + offset, axis, atol=0.02)
    ends = {text.text: text_box(text)[1] for text in svg.iter(f"{SVG}text") if text.text in LOSSES}
    assert ends["validation"][3] <= ends["training"][1]
    assert all(box[0] > points[:, 0].max() for box in ends.values())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=8), st.floats(1e-6, 1e6), st.integers(1, 30))
def test_a_curve_of_any_numbers_stays_inside_and_its_texts_do_not_overlap(
    y: list[float], step: float, names: int
) -> None:
    x = step * np.arange(len(y))
    svg = parsed(curve({f"line {name}": (x, np.array(y)) for name in range(names)}, "x" * 200, "y" * 200))
    _, _, right, bottom = map(float, svg.attrib["viewBox"].split())
    assert ((extent(svg) >= 0) & (extent(svg) <= [right, bottom])).all()
    assert not overlapping(svg)


def test_the_inherit_theme_takes_the_text_colour_of_the_page_and_has_no_background() -> None:
    for name, picture in all_pictures(GERMAN, ENGLISH, "", INHERIT).items():
        svg = parsed(picture)
        assert svg.get("fill") == "currentColor", name
        assert all(float(rect.attrib.get("x", 0)) > 0 for rect in svg.iter(f"{SVG}rect")), name
    assert DARK.background is not None
    assert DARK.background in heat_map(np.ones((1, 1)), ["a"], ["b"], theme=DARK)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: heat_map(np.ones((2, 3)), ["a"], ["b"]), "found 1 rows and 1 columns of tokens for weights of (2, 3)"),
        (lambda: head_grid(np.ones((1, 1, 0, 2))), "found numbers of shape (1, 1, 0, 2): expected 4 axes"),
        (lambda: head_lines(np.array([[0.5, np.nan]]), ["a"], ["b", "c"]), "found nan at (0, 1): expected finite"),
        (lambda: heat_map(np.array([[-0.25]]), ["a"], ["b"]), "found the weight -0.25: expected none below 0"),
        (lambda: heat_map(np.ones((1, 1)), ["a"], ["b"], top=0.0), "found a top of 0.0: expected a number above 0"),
        (lambda: curve({}, "x", "y"), "found no series to draw"),
        (
            lambda: curve({"a": (np.ones(2), np.ones(3))}, "x", "y"),
            "found x of shape (2,) and y of (3,) for the line 'a'",
        ),
        (
            lambda: curve({"a": (np.ones(1), np.array([np.inf]))}, "x", "y"),
            "found no point with finite numbers on the line 'a'",
        ),
    ],
)
def test_arrays_that_cannot_be_drawn_are_refused(draw: Callable[[], str], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        draw()


def test_numbers_that_are_all_zero_are_drawn() -> None:
    for picture in (heat_map, signed_heat_map, head_lines):
        parsed(picture(np.zeros((2, 2)), ["a", "b"], ["c", "d"]))


def test_a_picture_becomes_a_png_twice_as_large_or_a_pdf() -> None:
    svg = heat_map(softmax(len(HOSTILE), 3), HOSTILE, ["a", "b", "c"], "自然")
    png, pdf = render(svg, "png"), render(svg, "pdf")
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    with Image.open(io.BytesIO(png)) as picture:
        across, height = picture.size
    assert (2 * float(parsed(svg).attrib["width"]), 2 * float(parsed(svg).attrib["height"])) == (across, height)
    assert pdf.startswith(b"%PDF-")
    assert render(svg, "svg").decode() == svg


@pytest.mark.parametrize("kind", ["png", "pdf"])
def test_a_missing_renderer_is_an_error_that_says_what_to_install(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    message = f"a {kind.upper()} needs vl-convert-python, which is not installed: pip install vl-convert-python"
    with pytest.raises(ConfigError, match=re.escape(message)):
        render(PICTURES["curve"], "png" if kind == "png" else "pdf")
