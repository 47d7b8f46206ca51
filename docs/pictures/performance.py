"""Draws the figures of docs/performance.md from the numbers in performance.jsonl: python docs/pictures/performance.py

A line of that file describes a plot (its title, unit, hardware and date) or gives one number of it:

    {"plot": "train-gpu", "title": "Training on one GPU", "unit": "target tokens/s", "hardware": …, "date": …}
    {"plot": "train-gpu", "system": "heed", "value": 866000}

A number may belong to a "group" of bars, and "limit": true marks an upper bound. In a plot of growth it has
an "x"; these lines are what benchmarks/growth.py prints. "chart": false marks a table
that is not drawn. Whoever measures anew replaces lines, and runs this script and docs/make_performance.py.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil, floor, log10
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from heed.plots.chart import spread_labels
from heed.plots.svg import (
    EDGE,
    LIGHT,
    SMALL,
    content_top,
    element,
    max_width,
    path_data,
    small_text,
    svg_document,
    text,
    tooltip,
)

HERE = Path(__file__).parent
WIDE = 732.0  # what is between the edges: about as wide as a page shows it
SIZE, ROW, BAR = 12.0, 21.0, 13.0
OURS, PEER = LIGHT.positive, "#8c96a3"
GROWTH = ("translate-by-length", "translate-by-batch", "train-by-batch", "train-memory")


@dataclass
class Plot:
    """One plot: how it was described, and its numbers in the order of the file."""

    header: dict[str, Any]
    numbers: list[dict[str, Any]] = field(default_factory=list)

    @property
    def where(self) -> str:
        """On what, when, and what else is to be known."""
        return "; ".join(self.header[name] for name in ("hardware", "date", "note") if name in self.header)


def read(lines: Iterable[str]) -> dict[str, Plot]:
    """The plots of a file by name."""
    plots: dict[str, Plot] = {}
    for line in lines:
        entry = json.loads(line)
        if "title" in entry:
            plots[entry["plot"]] = Plot(entry)
        else:
            plots[entry["plot"]].numbers.append(entry)
    return {name: plot for name, plot in plots.items() if plot.header.get("chart", True)}


# Bars -----------------------------------------------------------------------------------------------------------------


def bars(plot: Plot) -> str:
    """Bars that grow to the right, in groups; each group has a scale of its own."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for number in plot.numbers:
        groups.setdefault(number.get("group", ""), []).append(number)
    title = plot.header["title"]
    left = EDGE + max_width((number["system"] for number in plot.numbers), SIZE) + 10
    room = EDGE + WIDE - 150 - left
    down, parts = content_top(title) + 10, [small_text(EDGE, content_top(title), plot.header["unit"])]
    if any("heed" in number["system"] for number in plot.numbers):
        parts.append(small_text(EDGE + WIDE, content_top(title), "heed is faster by", "end"))
    for group, numbers in groups.items():
        if group:
            parts.append(text(EDGE, down + 16, group, SIZE, opacity=0.75))
            down += 26
        most = max(number["value"] for number in numbers)
        (ours,) = (number["value"] for number in numbers if number["system"].startswith("heed"))
        for number in numbers:
            down += ROW
            parts += _bar(number, ours, (left, down - ROW / 2), room / most)
        down += 4
    parts.append(small_text(EDGE, down + 16, plot.where))
    return svg_document((EDGE + WIDE, down + 20), title, LIGHT, parts)


def _bar(number: Mapping[str, Any], ours: float, place: tuple[float, float], unit: float) -> list[Element]:
    """A system, its bar, its number; of a peer also how many times as fast we are."""
    (left, middle), long = place, number["value"] * unit
    is_ours, is_limit = number["system"].startswith("heed"), number.get("limit", False)
    colour = OURS if is_ours else PEER
    shape = {"x": left, "y": middle - BAR / 2, "width": long, "height": BAR, "rx": 2.0}
    look: dict[str, str | float | None] = {"fill": colour}
    if is_limit:
        look = {"fill": "none", "stroke": PEER, "stroke-dasharray": "3 3"}
    shown = f"{number['value']:,}"
    drawn = [
        text(left - 10, middle, number["system"], SIZE, "end", colour=colour if is_ours else None),
        element("rect", {**shape, **look}, tooltip(f"{number['system']}: {shown}")),
        text(left + long + 6, middle, shown, SIZE, colour=colour if is_ours else None),
    ]
    if not is_ours and not is_limit:
        drawn.append(text(EDGE + WIDE, middle, _times(ours / number["value"]), SIZE, "end", opacity=0.75))
    return drawn


def _times(ratio: float) -> str:
    return f"{ratio:.1f} ×" if ratio >= 10 else f"{ratio:.2f} ×"


# Growth ---------------------------------------------------------------------------------------------------------------


def growth(plots: list[Plot], title: str) -> str:
    """Two plots beside each other, and two below; both axes by factors, so that a straight line is a power."""
    across, tall = (WIDE - 24) / 2, 236.0
    parts = []
    for number, plot in enumerate(plots):
        corner = EDGE + number % 2 * (across + 24), content_top(title) + 4 + number // 2 * (tall + 22)
        parts += _panel(plot, corner, (across, tall))
    bottom = content_top(title) + 4 + ceil(len(plots) / 2) * (tall + 22)
    parts.append(small_text(EDGE, bottom, f"{plots[0].where}; axes logarithmic"))
    return svg_document((EDGE + WIDE, bottom + 4), title, LIGHT, parts)


def _panel(plot: Plot, corner: tuple[float, float], size: tuple[float, float]) -> list[Element]:
    lines: dict[str, list[tuple[float, float]]] = {}
    for number in plot.numbers:
        lines.setdefault(number["system"], []).append((number["x"], number["value"]))
    xs = sorted({x for line in lines.values() for x, _ in line})
    ys = round_numbers(*(limit(y for line in lines.values() for _, y in line) for limit in (min, max)))
    left, above = corner[0] + max_width((f"{y:,}" for y in ys), SMALL) + 8, corner[1] + 40
    right, below = corner[0] + size[0] - max_width(lines, SMALL) - 12, corner[1] + size[1] - 34

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            left + (right - left) * log10(x / xs[0]) / log10(xs[-1] / xs[0]),
            below - (below - above) * log10(y / ys[0]) / log10(ys[-1] / ys[0]),
        )

    parts = [
        text(corner[0], corner[1] + 8, plot.header["title"], SIZE),
        small_text(corner[0], above - 14, plot.header["unit"]),
    ]
    parts.append(small_text(right, below + 28, plot.header["x"], "end"))
    rule = {"stroke": LIGHT.foreground, "stroke-opacity": 0.12}
    for y in ys:
        _, height = place(xs[0], y)
        parts.append(element("path", {"d": path_data("M", left, height, "H", right), **rule}))
        parts.append(small_text(left - 6, height, f"{y:,}", "end"))
    parts += [small_text(place(x, ys[0])[0], below + 12, f"{x:,}", "middle") for x in xs]
    return parts + _lines({name: [place(*point) for point in line] for name, line in lines.items()}, (above, below))


def _lines(lines: Mapping[str, list[tuple[float, float]]], between: tuple[float, float]) -> list[Element]:
    """Lines through points on the sheet, each with its name at its end."""
    above, below = between
    order = sorted(lines, key=lambda name: lines[name][-1][1])
    heights = spread_labels([lines[name][-1][1] - above for name in order], [13.0] * len(order), below - above)
    drawn = []
    for name, height in zip(order, heights, strict=True):
        points, colour = lines[name], OURS if name == "heed" else LIGHT.negative
        path = path_data(*(step for x, y in points for step in ("L", x, y)))
        drawn.append(element("path", {"d": f"M{path[1:]}", "fill": "none", "stroke": colour, "stroke-width": 1.8}))
        drawn += [element("circle", {"cx": x, "cy": y, "r": 2.6, "fill": colour}) for x, y in points]
        drawn.append(text(points[-1][0] + 8, above + height, name, SMALL, colour=colour))
    return drawn


def round_numbers(low: float, high: float) -> list[int]:
    """From the last not above the one to the first not below the other, closer together where there is little between.

    10, 20, 50, 100 and so on, or 10, 12, 15, 20.
    """
    digits = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8) if high < 3 * low else (1, 2, 5)
    every = [
        round(digit * 10.0**power) for power in range(floor(log10(low)), ceil(log10(high)) + 1) for digit in digits
    ]
    first = max(number for number in every if number <= low)
    last = min(number for number in every if number >= high)
    return [number for number in every if first <= number <= last]


def pictures(plots: Mapping[str, Plot]) -> dict[str, str]:
    """Every picture by the name of its file."""
    drawn = {name: bars(plot) for name, plot in plots.items() if "x" not in plot.header}
    for device, title in (("cpu", "Growth on a CPU"), ("cuda", "Growth on a GPU")):
        found = [plots[f"{name}-{device}"] for name in GROWTH if f"{name}-{device}" in plots]
        if found:
            drawn[f"growth-{device}"] = growth(found, title)
    return {f"performance-{name}.svg": picture for name, picture in drawn.items()}


def main() -> None:
    """Draw them all beside the numbers, or into the folder that is given."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    plots = read((HERE / "performance.jsonl").read_text(encoding="utf-8").splitlines())
    for name, picture in pictures(plots).items():
        (folder / name).write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
