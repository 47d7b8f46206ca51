"""Line charts: axes with ticks and gridlines, lines with gaps, and labels at the ends of the lines.

Enters: points. Leaves: SVG elements, or with `curve` a whole SVG document as a string, of which
`heed.plots.svg.render` makes a PNG or PDF.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from xml.etree.ElementTree import Element

import numpy as np
from jaxtyping import Float

from heed.errors import InputError
from heed.plots.svg import (
    EDGE,
    LIGHT,
    SMALL,
    Theme,
    content_top,
    element,
    fitted,
    format_number,
    max_width,
    path_data,
    small_text,
    svg_document,
    text,
    tooltip,
    width,
)

SeriesValues = Float[np.ndarray, "_"]  # of any length
Points = Float[np.ndarray, "points"]
Line = tuple[Points, Points]  # x and y
OtherLine = tuple[Float[np.ndarray, "others"], Float[np.ndarray, "others"]]  # of another number of points

MAX_BINS = 1000  # a longer line is thinned to its extremes in so many bins: about the chart's width in pixels
TEXT = 12.0  # the font size of labels
_MAX_LOG_TICKS = 12
_MAX_LABEL = 260.0  # width of a label, in SVG units


@dataclass(frozen=True)
class Axis:
    """Numbers from low to high as coordinates from start to end; the y axis starts at the bottom."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, numbers: Sequence[float] | Points) -> Points:
        """The coordinates of values; the middle of the axis if low equals high."""
        values, low, high = np.asarray(numbers, dtype=float), self.low, self.high
        if self.log:
            values, low, high = np.log(values), np.log(low), np.log(high)
        share = (values - low) / (high - low) if high > low else values * 0 + 0.5
        return self.start + (self.end - self.start) * share


def grid(x: Axis, y: Axis, x_ticks: Sequence[float], y_ticks: Sequence[float], theme: Theme) -> list[Element]:
    """A gridline and a number for each y tick, a fainter line for each x tick."""
    upright = (path_data("M", across, y.start, "V", y.end) for across in x(x_ticks))
    parts = [element("path", {"d": rule, "stroke": theme.foreground, **_faint(0.05)}) for rule in upright]
    for tick, down in zip(y_ticks, y(y_ticks), strict=True):
        rule = {"d": path_data("M", x.start, down, "H", x.end), "stroke": theme.foreground}
        parts.append(element("path", {**rule, **_faint(0.35 if tick == 0 else 0.12)}))
        parts.append(small_text(x.start - 8, down, format_number(tick), "end"))
    return parts


def x_numbers(x: Axis, x_ticks: Sequence[float], bottom: float) -> list[Element]:
    """The numbers under the x axis."""
    return [
        small_text(across, bottom + 12, format_number(tick), "middle")
        for tick, across in zip(x_ticks, x(x_ticks), strict=True)
    ]


def _faint(opacity: float) -> dict[str, float]:
    return {"stroke-opacity": opacity}


def stroke(number: int, theme: Theme) -> dict[str, str | float | None]:
    """The stroke of the n-th line: five colours safe for colour-blind readers, then the same dashed."""
    colours = (theme.positive, theme.negative, "#0b8a66", "#b0619b", theme.foreground)
    return {"stroke": colours[number % 5], "stroke-dasharray": (None, "7 3", "2 3")[number // 5 % 3]}


def line(
    points: Line, look: Mapping[str, str | float | None], name: str = "line", hint: str = "", dots: bool = False
) -> Iterable[Element]:
    """A line between points, with a gap where y is not a number; dots at all points, or where one has no neighbours.

    look: SVG attributes; name: the class; hint: the tooltip.
    """
    x, y = thinned(*points)
    finite = np.pad(np.isfinite(x) & np.isfinite(y), 1)
    here, before, after = finite[1:-1], finite[:-2], finite[2:]
    steps = zip(x, y, here & (before | after), before, strict=True)
    path = "".join(path_data("L" if joined else "M", across, down) for across, down, drawn, joined in steps if drawn)
    about = [tooltip(hint)] * bool(hint)
    round_ends = {"fill": "none", "stroke-linecap": "round", "stroke-linejoin": "round"}
    if path:
        yield element("path", {"class": name, "d": path, "stroke-width": 1.6, **round_ends, **look}, *about)
    dotted = here & (dots | ~(before | after))
    if dotted.any():
        circles = "".join(circle(across, down, 2.4) for across, down in zip(x[dotted], y[dotted], strict=True))
        yield element("path", {"class": f"dots {name}", "d": circles, "fill": look["stroke"]}, *about)


def circle(x: float, y: float, radius: float) -> str:
    """SVG path data of a circle."""
    half = ("a", radius, radius, 0.0, 1.0, 0.0)
    return path_data("M", x - radius, y, *half, 2 * radius, 0.0, *half, -2 * radius, 0.0)


def clipped(x: Points, y: Points, low: float, high: float) -> OtherLine:
    """The part of a line between two heights, ended where it crosses them."""
    for limit in (low, high):
        above = y > limit
        (leaving,) = np.nonzero((above[:-1] != above[1:]) & np.isfinite(y[:-1] + y[1:]))
        share = (limit - y[leaving]) / (y[leaving + 1] - y[leaving])
        crossing = x[leaving] + share * (x[leaving + 1] - x[leaving])
        x, y = np.insert(x, leaving + 1, crossing), np.insert(y, leaving + 1, limit)
    return x, np.where((y >= low) & (y <= high), y, np.nan)


def thinned(x: Points, y: Points) -> OtherLine:
    """Thin a long line to the lowest and highest point of each of `MAX_BINS` bins: it looks the same."""
    if len(y) <= 2 * MAX_BINS:
        return x, y
    kept: list[int] = []
    for bin_ in np.array_split(np.arange(len(y)), MAX_BINS):
        finite = bin_[np.isfinite(y[bin_])]
        kept += sorted({int(finite[y[finite].argmin()]), int(finite[y[finite].argmax()])}) if len(finite) else [bin_[0]]
    return x[kept], y[kept]


@dataclass(frozen=True)
class EndLabel:
    """A label at the end of a line, and a smaller one under it."""

    end: tuple[float, float]
    colour: str
    words: str
    under: str = ""
    whole: str = ""  # the tooltip


def label_height(under: str) -> float:
    """The height of a label beside a chart, with or without words under it."""
    return 28.0 if under else 15.0


def end_labels(labels: Iterable[EndLabel], right: float, between: tuple[float, float]) -> tuple[list[Element], float]:
    """Labels to the right of a chart, each as near to its line's end as the others allow, and where they end.

    between: the upper and lower limit of their y coordinates.
    """
    above, below = between
    labels = sorted(labels, key=lambda label: label.end[1])
    heights = [label_height(label.under) for label in labels]
    wanted = [label.end[1] - above + height / 2 - 7.5 for label, height in zip(labels, heights, strict=True)]
    parts, furthest = [], right
    for label, height, middle in zip(labels, heights, spread_labels(wanted, heights, below - above), strict=True):
        y = above + middle - height / 2 + 7.5
        thread = {
            "d": path_data("M", label.end[0] + 4, label.end[1], "H", right + 4, "L", right + 12, y),
            "fill": "none",
        }
        parts.append(element("path", {**thread, "stroke": label.colour, **_faint(0.4), "stroke-dasharray": "1 2"}))
        named = text(right + 16, y, label.words, TEXT, colour=label.colour)
        parts.append(element("g", {}, tooltip(label.whole), named) if label.whole else named)
        if label.under:
            parts.append(small_text(right + 16, y + 13, label.under))
        furthest = max(furthest, right + 16 + max(width(label.words, TEXT), width(label.under, SMALL)))
    return parts, furthest


def spread_labels(wanted: Sequence[float], heights: Sequence[float], available: float) -> list[float]:
    """The centres of stacked labels: in order, without overlap, within `available`, as near as possible to `wanted`.

    Isotonic regression: less the heights before them, centres must not decrease; runs that do get their mean.
    """
    before = np.cumsum([0.0, *heights])[:-1] + np.array(heights) / 2
    groups: list[list[float]] = []
    for number in np.array(wanted) - before:
        groups.append([float(number)])
        while len(groups) > 1 and np.mean(groups[-2]) > np.mean(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    rising = [np.mean(group) for group in groups for _ in group]
    return [float(number) for number in np.clip(rising, 0, available - sum(heights)) + before]


def ticks(low: float, high: float, about: int, beyond: bool = False, whole: bool = False) -> list[float]:
    """About so many round numbers from low to high, or to just beyond both; whole: integers only."""
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        around = abs(high) / 2 or 1.0
        return [low - around, low, low + around] if beyond else [low]
    rough = max((high - low) / about, 1.0 if whole else 0.0)
    power = 10.0 ** floor(log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= 0.999 * rough)
    first, last = (floor(low / step), ceil(high / step)) if beyond else (ceil(low / step), floor(high / step))
    return [number * step for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers from low to high for a logarithmic axis; more per decade for a narrower range."""
    for digits in ((1,), (1, 2, 5), (1, 2, 3, 4, 6, 8)):
        powers = range(floor(log10(low)), ceil(log10(high)) + 1)
        candidates = [digit * 10.0**power for power in powers for digit in digits if low <= digit * 10.0**power <= high]
        if len(candidates) >= 5:
            return candidates[:: -(-len(candidates) // _MAX_LOG_TICKS)]
    return candidates if len(candidates) > 2 else ticks(low, high, 6)


def distance_curve(dots: Float[np.ndarray, "P"], title: str = "", theme: Theme = LIGHT) -> str:
    """The dot product of positional encodings by distance, from 0."""
    y = np.asarray(dots, dtype=float)
    return curve({"": (np.arange(len(y), dtype=float), y)}, "distance between positions", "dot product", title, theme)


def curve(
    series: Mapping[str, tuple[SeriesValues, SeriesValues]],
    x_label: str,
    y_label: str,
    title: str = "",
    theme: Theme = LIGHT,
    log: str = "",
) -> str:
    """A line per series, with its name at its end; nan is a gap. log: the logarithmic axes, x, y or xy."""
    if not series:
        raise InputError("found no series to draw: expected one or more")
    lines = {name: _checked(name, points) for name, points in series.items()}
    xs, ys = (np.concatenate(both) for both in zip(*lines.values(), strict=True))
    low, high = float(np.nanmin(xs)), float(np.nanmax(xs))
    bottom, top = float(np.nanmin(ys)), float(np.nanmax(ys))
    x_ticks = log_ticks(low, high) if "x" in log else ticks(low, high, 6)
    y_ticks = log_ticks(bottom, top) if "y" in log else ticks(bottom, top, 5, beyond=True)
    if "y" not in log:
        bottom, top = y_ticks[0], y_ticks[-1]
    left = EDGE + max(
        max_width(map(format_number, y_ticks), SMALL) + 8, max_width(map(format_number, x_ticks), SMALL) / 2
    )
    right, above = left + 520, content_top(title) + 24
    below = above + max(260.0, 15.0 * len(lines))
    x_axis, y_axis = Axis(low, high, left, right, "x" in log), Axis(bottom, top, below, above, "y" in log)
    parts = [
        small_text(EDGE, above - 20, fitted(y_label, 520.0, SMALL)),
        small_text(right, below + 30, fitted(x_label, 520.0, SMALL), "end"),
        *grid(x_axis, y_axis, x_ticks, y_ticks, theme),
        *x_numbers(x_axis, x_ticks, below),
    ]
    labels = []
    for number, (name, (x, y)) in enumerate(lines.items()):
        look, drawn = stroke(number, theme), (x_axis(x), y_axis(y))
        parts += line(drawn, look)
        if name:
            shown = fitted(name, _MAX_LABEL, TEXT)
            labels.append(EndLabel(last_point(drawn) or (right, below), str(look["stroke"]), shown, whole=name))
    named, end = end_labels(labels, right, (above, below))
    end = max(end, right + max_width(map(format_number, x_ticks), SMALL) / 2)
    return svg_document((end, below + 36), title, theme, [*parts, *named])


def last_point(points: Line) -> tuple[float, float] | None:
    """Where a line ends; none where it has no point."""
    x, y = points
    finite = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    return (float(x[finite[-1]]), float(y[finite[-1]])) if len(finite) else None


def _checked(name: str, points: tuple[SeriesValues, SeriesValues]) -> Line:
    x, y = (np.asarray(axis, dtype=float) for axis in points)
    if x.ndim != 1 or x.shape != y.shape:
        raise InputError(
            f"found x of shape {x.shape} and y of {y.shape} for the line {name!r}: expected two equal lists"
        )
    finite = np.isfinite(x) & np.isfinite(y)
    if not finite.any():
        raise InputError(f"found no point with finite numbers on the line {name!r}: expected one or more")
    return np.where(finite, x, np.nan), np.where(finite, y, np.nan)
