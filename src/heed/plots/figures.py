"""Figures of attention and positions for papers and pages, as SVG.

Enters: arrays, with the tokens of their own rows and columns. Leaves: an SVG document as a string, of which
`heed.plots.svg.render` makes a PNG or PDF. Knows nothing of models, and needs no torch.

    heat_map            attention weights of one head, or any matrix of tokens by tokens
    head_grid           small heat maps of every layer and head
    head_lines          two columns of tokens with lines between them, as opaque as the weights
    signed_heat_map     a matrix with both signs, such as the changes of an occlusion
    position_picture    positional encodings

A number is drawn as the opacity of one colour; rows are queries and columns are keys.
"""

from collections.abc import Callable, Iterator, Sequence
from math import ceil, cos, radians, sin
from xml.etree.ElementTree import Element

import numpy as np
from jaxtyping import Float

from heed.errors import InputError
from heed.plots.chart import ticks
from heed.plots.svg import (
    EDGE,
    LIGHT,
    SMALL,
    Theme,
    color_bar,
    content_top,
    element,
    format_number,
    label,
    max_width,
    panel_background,
    path_data,
    raster_image,
    small_text,
    svg_document,
    token_text,
    tooltip,
    width,
)

Map = Float[np.ndarray, "T S"]
TokenTexts = Sequence[str]

_MAX_LABEL = 130.0  # width of a token label
_TILT = radians(60)  # of the column labels


def heat_map(
    weights: Map, rows: TokenTexts, columns: TokenTexts, title: str = "", top: float | None = None, theme: Theme = LIGHT
) -> str:
    """A heat map with its tokens; top: the weight that full opacity stands for, else the largest."""
    weights = _weights(weights, 2)
    span = 0.0, _top(weights, top)
    return _token_map(weights, rows, columns, title, theme, span, "{} → {}: {:.3g}".format)


def signed_heat_map(changes: Map, rows: TokenTexts, columns: TokenTexts, title: str = "", theme: Theme = LIGHT) -> str:
    """A heat map of values of both signs, in two colours, such as the changes of an occlusion."""
    changes = _numbers(changes, 2)
    span = -_top(changes), _top(changes)
    return _token_map(changes, rows, columns, title, theme, span, "{} without {}: {:+.3g}".format)


def _token_map(
    values: Map,
    rows: TokenTexts,
    columns: TokenTexts,
    title: str,
    theme: Theme,
    span: tuple[float, float],
    say: Callable[[str, str, float], str],
) -> str:
    _match(values, rows, columns)
    unit = float(min(26, max(12, 640 // max(values.shape))))
    size = min(13.0, 0.8 * unit)
    beside, over = ([label(token, _MAX_LABEL, size) for token in tokens] for tokens in (rows, columns))
    left = float(ceil(EDGE + max_width(beside, size) + 6))
    above = float(ceil(content_top(title) + max_width(over, size) * sin(_TILT) + 0.5 * size + 3))
    right, below = left + len(columns) * unit, above + len(rows) * unit
    cells = []
    for (row, column), value in np.ndenumerate(values):
        place = {"x": left + column * unit, "y": above + row * unit, "width": unit - 1, "height": unit - 1}
        look = {"fill": theme.negative if value < 0 else None, "fill-opacity": min(1.0, abs(value) / span[1])}
        cells.append(element("rect", {**place, **look}, tooltip(say(beside[row], over[column], value))))
    parts = [
        panel_background(left, above, right - left - 1, below - above - 1),
        element("g", {"class": "cells", "fill": theme.positive}, *cells),
    ]
    for number, token in enumerate(rows):
        parts.append(token_text(left - 5, above + (number + 0.5) * unit, token, beside[number], size, "end"))
    tips = []
    for number, token in enumerate(columns):
        middle = left + (number + 0.5) * unit
        parts.append(token_text(middle, above - 5, token, over[number], size, turn=-60.0))
        tips.append(middle + width(over[number], size) * cos(_TILT) + 0.5 * size)
    colours, end = color_bar(left, below + 16, span, theme)
    return svg_document((max(*tips, right, end), below + 22), title, theme, [*parts, *colours])


def head_grid(
    weights: Float[np.ndarray, "L H T S"],
    rows: TokenTexts = (),
    columns: TokenTexts = (),
    title: str = "",
    top: float | None = None,
    theme: Theme = LIGHT,
) -> str:
    """Every layer and head as a small map, all on one scale. Given tokens, a row's tooltip has its top three keys."""
    weights = _weights(weights, 4)
    layers, heads, down, across = weights.shape
    if rows or columns:
        _match(weights[0, 0], rows, columns)
    top = _top(weights, top)
    row_words, column_words = ([label(token, 50.0, SMALL) for token in tokens] for tokens in (rows, columns))
    unit = max(2.0, float(round(96 / max(down, across))))
    pitch_across, pitch_down = max(across * unit, 44.0) + 10, max(down * unit, 14.0) + 10
    left, above = float(ceil(EDGE + width(f"layer {layers}", SMALL) + 8)), content_top(title) + 18
    parts = []
    for layer, maps in enumerate(weights):
        y = above + layer * pitch_down
        parts.append(small_text(left - 8, y + down * unit / 2, f"layer {layer + 1}", "end"))
        for head, matrix in enumerate(maps):
            x = left + head * pitch_across
            if layer == 0:
                parts.append(small_text(x, above - 10, f"head {head + 1}"))
            hint = element("g", {"fill-opacity": 0.0}, *_strongest(x, y, unit, matrix, row_words, column_words))
            shown = [
                tooltip(f"layer {layer + 1}, head {head + 1}"),
                panel_background(x, y, across * unit, down * unit),
                raster_image(x, y, (unit, unit), np.minimum(1, matrix / top), theme),
            ]
            parts.append(element("g", {"class": "head"}, *shown, *[hint] * bool(rows)))
    right, below = left + heads * pitch_across - 10, above + layers * pitch_down
    colours, end = color_bar(left, below + 8, (0.0, top), theme)
    return svg_document((max(right, end), below + 14), title, theme, [*parts, *colours])


def _strongest(x: float, y: float, unit: float, weights: Map, rows: list[str], columns: list[str]) -> Iterator[Element]:
    """A transparent band over each row of a small map, with a tooltip."""
    for number, row in enumerate(rows):
        best = np.argsort(-weights[number], kind="stable")[:3]
        hint = ", ".join(f"{columns[column]} {weights[number, column]:.2f}" for column in best)
        band = path_data("M", x, y + number * unit, "h", len(columns) * unit, "v", unit, "H", x, "z")
        yield element("path", {"d": band}, tooltip(f"{row} → {hint}"))


def head_lines(
    weights: Map, rows: TokenTexts, columns: TokenTexts, title: str = "", top: float | None = None, theme: Theme = LIGHT
) -> str:
    """Rows on the left, with lines to the columns they attend to; a line too faint to see is left out."""
    weights = _weights(weights, 2)
    _match(weights, rows, columns)
    top = _top(weights, top)
    size, pitch, gap = 13.0, 20.0, 190.0
    before, after = ([label(token, _MAX_LABEL, size) for token in tokens] for tokens in (rows, columns))
    left, above = float(ceil(EDGE + max_width(before, size) + 6)), content_top(title)
    right, middle, height = left + gap, left + gap / 2, max(weights.shape) * pitch
    starts, ends = (above + (height - pitch * (count - 1)) / 2 + pitch * np.arange(count) for count in weights.shape)
    lines = []
    for place in np.argsort(weights, axis=None, kind="stable"):  # the strongest last, over the others
        row, column = divmod(int(place), len(columns))
        opacity = round(min(1.0, weights[row, column] / top), 2)
        if opacity > 0:
            bend = path_data(
                "M", left, starts[row], "C", middle, starts[row], middle, ends[column], right, ends[column]
            )
            hint = tooltip(f"{before[row]} → {after[column]}: {weights[row, column]:.3g}")
            lines.append(element("path", {"d": bend, "stroke-opacity": opacity}, hint))
    parts = [element("g", {"class": "lines", "fill": "none", "stroke": theme.positive, "stroke-width": 1.6}, *lines)]
    for x, anchor, *side in ((left - 6, "end", starts, rows, before), (right + 6, "start", ends, columns, after)):
        parts += [token_text(x, y, token, shown, size, anchor) for y, token, shown in zip(*side, strict=True)]
    return svg_document((right + 6 + max_width(after, size), above + height), title, theme, parts)


def position_picture(codes: Float[np.ndarray, "P D"], title: str = "", theme: Theme = LIGHT) -> str:
    """Positional encodings, a row each: one colour above zero, another below."""
    codes = _numbers(codes, 2)
    positions, depth = codes.shape
    unit = float(max(1, 512 // depth)), float(max(1, 240 // positions))
    left, above, top = EDGE + 54, content_top(title) + 4, _top(codes)
    right, below = left + depth * unit[0], above + positions * unit[1]
    colours, end = color_bar(left, below + 52, (-top, top), theme)
    parts = [
        panel_background(left, above, right - left, below - above),
        raster_image(left, above, unit, codes / top, theme),
        small_text(EDGE + 6, (above + below) / 2, "position", "middle", -90.0),
        small_text((left + right) / 2, below + 28, "dimension", "middle"),
        *(
            small_text(left - 6, above + (n + 0.5) * unit[1], format_number(n), "end")
            for n in ticks(0.0, positions - 1.0, 6)
        ),
        *(
            small_text(left + (n + 0.5) * unit[0], below + 12, format_number(n), "middle")
            for n in ticks(0.0, depth - 1.0, 8)
        ),
        *colours,
    ]
    return svg_document((max(right, end), below + 58), title, theme, parts)


def dots_by_distance(codes: Float[np.ndarray, "P D"]) -> Float[np.ndarray, "P"]:
    """The mean dot product of two positional encodings by their distance, from 0."""
    codes = _numbers(codes, 2)
    dot_products = codes @ codes.T
    return np.array([dot_products.diagonal(distance).mean() for distance in range(len(codes))])


def _numbers(values: np.ndarray, axes: int) -> np.ndarray:
    values = np.asarray(values, dtype=float)
    if values.ndim != axes or not values.size:
        raise InputError(f"found numbers of shape {values.shape}: expected {axes} axes, none of them empty")
    if not np.isfinite(values).all():
        index = tuple(map(int, np.argwhere(~np.isfinite(values))[0]))
        raise InputError(f"found {values[index]} at {index}: expected finite numbers")
    return values


def _weights(values: np.ndarray, axes: int) -> np.ndarray:
    values = _numbers(values, axes)
    if values.min() < 0:
        raise InputError(
            f"found the weight {values.min():.3g}: expected none below 0; signed_heat_map draws both signs"
        )
    return values


def _top(values: np.ndarray, hint: float | None = None) -> float:
    """The number that full opacity stands for."""
    if hint is not None and not hint > 0:
        raise InputError(f"found a top of {hint}: expected a number above 0")
    return hint or float(np.abs(values).max()) or 1.0


def _match(values: Map, rows: TokenTexts, columns: TokenTexts) -> None:
    if values.shape != (len(rows), len(columns)):
        raise InputError(f"found {len(rows)} rows and {len(columns)} columns of tokens for weights of {values.shape}")
