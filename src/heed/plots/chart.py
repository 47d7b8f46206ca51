"""Named lines, drawn without a plotting library: a training, or how alike two position codes are by their distance.

Enters: points. Leaves: an SVG document as a string, of which `heed.plots.svg.rendered` makes a PNG or PDF.
"""

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from xml.etree.ElementTree import Element

import numpy as np
from jaxtyping import Float

from heed.errors import InputError
from heed.plots.lettering import fitted, widest, width
from heed.plots.svg import EDGE, SMALL, WHITE, Paper, document, element, header, hover, note, pen, said, text

Line = tuple[Float[np.ndarray, "_"], Float[np.ndarray, "_"]]  # x and y

STRETCHES = 1000  # of a long line that are told apart: about the figure's width in pixels
_LONGEST = 260.0  # of names
_RING = ("a", 2.0, 2.0, 0.0, 1.0, 0.0, 4.0, 0.0, "a", 2.0, 2.0, 0.0, 1.0, 0.0, -4.0, 0.0)


def distance_curve(dots: Float[np.ndarray, "P"], title: str = "", paper: Paper = WHITE) -> str:
    """The dot product of position codes by their distance, 0 first."""
    y = np.asarray(dots, dtype=float)
    return curve({"": (np.arange(len(y), dtype=float), y)}, "distance between positions", "dot product", title, paper)


def curve(series: Mapping[str, Line], x_label: str, y_label: str, title: str = "", paper: Paper = WHITE) -> str:
    """Lines through points, each with its name at its end. What is not a number is a gap."""
    if not series:
        raise InputError("found no line to draw: expected one or more")
    lines = {name: _points(name, line) for name, line in series.items()}
    xs, ys = (np.concatenate(both) for both in zip(*lines.values(), strict=True))
    low, high = float(np.nanmin(xs)), float(np.nanmax(xs))
    x_ticks, y_ticks = ticks(low, high, 6), ticks(float(np.nanmin(ys)), float(np.nanmax(ys)), 5, beyond=True)
    left = EDGE + max(widest(map(said, y_ticks), SMALL) + 8, widest(map(said, x_ticks), SMALL) / 2)
    right, above = left + 520, header(title) + 24
    below = above + max(260.0, 15.0 * len(lines))

    def across(x: np.ndarray) -> np.ndarray:
        return left + (right - left) * ((x - low) / (high - low) if high > low else x * 0 + 0.5)

    def down(y: np.ndarray) -> np.ndarray:
        return below - (below - above) * (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])

    parts = [
        note(EDGE, above - 20, fitted(y_label, 520.0, SMALL)),
        note(right, below + 30, fitted(x_label, 520.0, SMALL), "end"),
    ]
    for tick, y in zip(y_ticks, down(np.array(y_ticks)), strict=True):
        rule = {"d": pen("M", left, y, "H", right), "stroke": paper.ink}
        parts.append(element("path", {**rule, "stroke-opacity": 0.35 if tick == 0 else 0.12}))
        parts.append(note(left - 8, y, said(tick), "end"))
    for tick, x in zip(x_ticks, across(np.array(x_ticks)), strict=True):
        parts.append(note(x, below + 12, said(tick), "middle"))
    drawn, end = _lines({name: (across(x), down(y)) for name, (x, y) in lines.items()}, right, (above, below), paper)
    end = max(end, right + widest(map(said, x_ticks), SMALL) / 2)
    return document((end, below + 36), title, paper, [*parts, *drawn])


def _lines(
    lines: Mapping[str, Line], right: float, between: tuple[float, float], paper: Paper
) -> tuple[list[Element], float]:
    """Lines whose points lie on the sheet, their names to the right of them all, and where the names end."""
    above, below = between
    ends = {name: [float(axis[np.isfinite(y)][-1]) for axis in (x, y)] for name, (x, y) in lines.items()}
    order = sorted(ends, key=lambda name: ends[name][1])
    middles = apart([ends[name][1] - above for name in order], [15.0] * len(order), below - above)
    height = {name: above + middle for name, middle in zip(order, middles, strict=True)}
    colours = (paper.more, paper.less, "#0b8a66", "#b0619b", paper.ink)
    drawn, furthest = [], right
    for number, (name, (x, y)) in enumerate(lines.items()):
        colour, dashes = colours[number % 5], (None, "7 3", "2 3")[number // 5 % 3]
        ink = {"stroke": colour, "stroke-width": "1.6", "stroke-linecap": "round", "stroke-dasharray": dashes}
        drawn.append(element("path", {"class": "line", "d": _path(x, y), "fill": "none", **ink}))
        if name:
            shown = fitted(name, _LONGEST, 12.0)
            thread = pen("M", *ends[name], "H", right + 4, "L", right + 12, height[name])
            drawn.append(element("path", {"d": thread, "fill": "none", "stroke": colour, "stroke-opacity": 0.4}))
            drawn.append(element("g", {}, hover(name), text(right + 16, height[name], shown, 12.0, colour=colour)))
            furthest = max(furthest, right + 16 + width(shown, 12.0))
    return drawn, furthest


def _path(x: Float[np.ndarray, "points"], y: Float[np.ndarray, "points"]) -> str:
    """From point to point, with gaps; a point without neighbours is a ring, or nobody would see it."""
    there = np.pad(np.isfinite(y), 1)
    steps = zip(x, y, there[1:-1], there[:-2], there[2:], strict=True)
    return "".join(
        pen("L" if before else "M", across, down) if before or after else pen("M", across - 2, down, *_RING)
        for across, down, here, before, after in steps
        if here
    )


def _points(name: str, line: Line) -> Line:
    x, y = (np.asarray(axis, dtype=float) for axis in line)
    if x.ndim != 1 or x.shape != y.shape:
        raise InputError(
            f"found x of shape {x.shape} and y of {y.shape} for the line {name!r}: expected two equal lists"
        )
    there = np.isfinite(x) & np.isfinite(y)
    if not there.any():
        raise InputError(f"found no point with finite numbers on the line {name!r}: expected one or more")
    return thinned(np.where(there, x, np.nan), np.where(there, y, np.nan))


def ticks(low: float, high: float, about: int, beyond: bool = False) -> list[float]:
    """About so many round numbers from one to the other, or to just beyond both."""
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        around = abs(high) / 2 or 1.0
        return [low - around, low, low + around] if beyond else [low]
    rough = (high - low) / about
    power = 10.0 ** floor(log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= 0.999 * rough)
    first, last = (floor(low / step), ceil(high / step)) if beyond else (ceil(low / step), floor(high / step))
    return [number * step for number in range(first, last + 1)]


def apart(wanted: Sequence[float], heights: Sequence[float], room: float) -> list[float]:
    """The middles of labels of such heights, in order, none over another, all in the room, and moved little.

    Less the heights below them, middles may only rise, and the nearest rising numbers are the means of those that fall.
    """
    below = np.cumsum([0.0, *heights])[:-1] + np.array(heights) / 2
    groups: list[list[float]] = []
    for number in np.array(wanted) - below:
        groups.append([float(number)])
        while len(groups) > 1 and np.mean(groups[-2]) > np.mean(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    rising = [np.mean(group) for group in groups for _ in group]
    return [float(number) for number in np.clip(rising, 0, room - sum(heights)) + below]


def thinned(x: Float[np.ndarray, "steps"], y: Float[np.ndarray, "steps"]) -> tuple[np.ndarray, np.ndarray]:
    """Of a long line, the lowest and highest point of each of a thousand stretches: it looks the same."""
    if len(y) <= 2 * STRETCHES:
        return x, y
    kept: list[int] = []
    for stretch in np.array_split(np.arange(len(y)), STRETCHES):
        there = stretch[np.isfinite(y[stretch])]
        kept += sorted({int(there[y[there].argmin()]), int(there[y[there].argmax()])}) if len(there) else [stretch[0]]
    return x[kept], y[kept]
