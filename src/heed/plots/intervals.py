"""A chart of rows: a name, a point and its interval per row, and a line at the first row's value.

Enters: names and numbers. Leaves: an SVG document.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from heed.plots.chart import Axis, circle, ticks, x_numbers
from heed.plots.svg import (
    EDGE,
    LIGHT,
    SMALL,
    Theme,
    content_top,
    element,
    fitted,
    max_width,
    path_data,
    small_text,
    svg_document,
    text,
)

_ROW, _SIZE, _ACROSS, _LONGEST_NAME = 20.0, 12.0, 360.0, 300.0


def intervals(
    names: Sequence[str],
    values: Float[np.ndarray, "rows"],
    half_widths: Float[np.ndarray, "rows"],
    label: str,
    title: str = "",
    theme: Theme = LIGHT,
) -> str:
    """Each value with its interval, beside its name; the dashed line is the first row's value."""
    low, high = float((values - half_widths).min()), float((values + half_widths).max())
    marks = ticks(low, high, 6, beyond=True)
    shown = [fitted(name, _LONGEST_NAME, _SIZE) for name in names]
    left, top = EDGE + max_width(shown, _SIZE) + 16, content_top(title) + 20
    right, bottom = left + _ACROSS, top + _ROW * len(names)
    x = Axis(marks[0], marks[-1], left, right)
    parts = [small_text(right, top - 14, fitted(label, _ACROSS, SMALL), "end")]
    for mark in x(marks):
        rule = path_data("M", mark, top, "V", bottom)
        parts.append(element("path", {"d": rule, "stroke": theme.foreground, "stroke-opacity": 0.12}))
    first = path_data("M", x([values[0]])[0], top, "V", bottom)
    parts.append(
        element("path", {"d": first, "stroke": theme.foreground, "stroke-opacity": 0.5, "stroke-dasharray": "4 3"})
    )
    rows = zip(shown, x(values), x(values - half_widths), x(values + half_widths), strict=True)
    for number, (name, at, start, end) in enumerate(rows):
        y = top + _ROW * (number + 0.5)
        parts.append(text(left - 12, y, name, _SIZE, "end"))
        parts.append(element("path", {"d": path_data("M", start, y, "H", end), "stroke": theme.positive}))
        parts.append(element("path", {"d": circle(at, y, 3.0), "fill": theme.positive}))
    return svg_document((right + EDGE, bottom + 26), title, theme, [*parts, *x_numbers(x, marks, bottom)])
