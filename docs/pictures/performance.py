"""Read the measurements in performance.jsonl and draw them as charts; `python -m docs.make_performance` runs it.

A line of that file describes a plot (title, unit, hardware, date, command) or gives one number of it:

    {"plot": "train-gpu", "title": "Training on one GPU", "unit": "target tokens/s", "hardware": …, "date": …}
    {"plot": "train-gpu", "system": "heed", "value": 866000}

A number may belong to a "group" of bars; "limit": true marks an upper bound. The numbers of a line chart have an "x"
and are printed by benchmarks/growth.py. "chart": false marks a plot that is only a table.
"""

import json
from collections.abc import Mapping
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

PICTURES = Path(__file__).parent
WIDTH = 732.0  # between the edges: about the width of a page's text
SIZE, ROW, BAR = 12.0, 21.0, 13.0
HEED_COLOUR, PEER_COLOUR = LIGHT.positive, "#8c96a3"
SCALING = ("translate-by-length", "translate-by-batch", "train-by-batch", "train-memory")


@dataclass
class Plot:
    """The description of a plot and its numbers, in the order of the file."""

    header: dict[str, Any]
    numbers: list[dict[str, Any]] = field(default_factory=list)

    @property
    def unit(self) -> str:
        """The unit of the numbers, without the remark on the scale of a chart that may follow a comma."""
        return str(self.header["unit"]).partition(",")[0]

    @property
    def conditions(self) -> str:
        """Hardware, date and note."""
        return "; ".join(self.header[name] for name in ("hardware", "date", "note") if name in self.header)

    def speedup(self, ours: float, peer: float) -> float:
        """How many times as fast as the peer heed is: above 1 heed is faster."""
        return peer / ours if self.header.get("lower is better") else ours / peer


def read_plots() -> dict[str, Plot]:
    """All plots of performance.jsonl by name."""
    plots: dict[str, Plot] = {}
    for line in (PICTURES / "performance.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if "title" in entry:
            plots[entry["plot"]] = Plot(entry)
        else:
            plots[entry["plot"]].numbers.append(entry)
    return plots


def format_speedup(ratio: float) -> str:
    """A ratio with three digits."""
    return f"{ratio:.1f} ×" if ratio >= 10 else f"{ratio:.2f} ×"


# Bars -----------------------------------------------------------------------------------------------------------------


def bar_chart(plot: Plot) -> str:
    """Horizontal bars in groups; each group has its own scale."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for number in plot.numbers:
        groups.setdefault(number.get("group", ""), []).append(number)
    title = plot.header["title"]
    left = EDGE + max_width((number["system"] for number in plot.numbers), SIZE) + 10
    longest_bar = EDGE + WIDTH - 150 - left
    y, parts = content_top(title) + 10, [small_text(EDGE, content_top(title), plot.header["unit"])]
    parts.append(small_text(EDGE + WIDTH, content_top(title), "speedup of heed", "end"))
    for group, numbers in groups.items():
        if group:
            parts.append(text(EDGE, y + 16, group, SIZE, opacity=0.75))
            y += 26
        largest = max(number["value"] for number in numbers)
        (ours,) = (number["value"] for number in numbers if number["system"] == "heed")
        for number in numbers:
            y += ROW
            parts += _bar(number, plot.speedup(ours, number["value"]), (left, y - ROW / 2), longest_bar / largest)
        y += 4
    parts.append(small_text(EDGE, y + 16, plot.conditions))
    return svg_document((EDGE + WIDTH, y + 20), title, LIGHT, parts)


def _bar(number: Mapping[str, Any], speedup: float, origin: tuple[float, float], scale: float) -> list[Element]:
    """A system's name, its bar and its number; for a peer also heed's speedup."""
    (left, middle), length = origin, number["value"] * scale
    is_ours, is_limit = number["system"] == "heed", number.get("limit", False)
    colour = HEED_COLOUR if is_ours else PEER_COLOUR
    shape = {"x": left, "y": middle - BAR / 2, "width": length, "height": BAR, "rx": 2.0}
    style: dict[str, str | float | None] = {"fill": colour}
    if is_limit:
        style = {"fill": "none", "stroke": PEER_COLOUR, "stroke-dasharray": "3 3"}
    value = f"{number['value']:,}"
    parts = [
        text(left - 10, middle, number["system"], SIZE, "end", colour=colour if is_ours else None),
        element("rect", {**shape, **style}, tooltip(f"{number['system']}: {value}")),
        text(left + length + 6, middle, value, SIZE, colour=colour if is_ours else None),
    ]
    if not is_ours and not is_limit:
        parts.append(text(EDGE + WIDTH, middle, format_speedup(speedup), SIZE, "end", opacity=0.75))
    return parts


# Scaling with length and batch size -----------------------------------------------------------------------------------


def scaling_chart(plots: list[Plot], title: str) -> str:
    """Line charts in two columns; both axes are logarithmic, so that a power law is a straight line."""
    width, height = (WIDTH - 24) / 2, 236.0
    parts = []
    for index, plot in enumerate(plots):
        corner = EDGE + index % 2 * (width + 24), content_top(title) + 4 + index // 2 * (height + 22)
        parts += _panel(plot, corner, (width, height))
    bottom = content_top(title) + 4 + ceil(len(plots) / 2) * (height + 22)
    parts.append(small_text(EDGE, bottom, f"{plots[0].conditions}; axes logarithmic"))
    return svg_document((EDGE + WIDTH, bottom + 4), title, LIGHT, parts)


def _panel(plot: Plot, corner: tuple[float, float], size: tuple[float, float]) -> list[Element]:
    lines: dict[str, list[tuple[float, float]]] = {}
    for number in plot.numbers:
        lines.setdefault(number["system"], []).append((number["x"], number["value"]))
    xs = sorted({x for line in lines.values() for x, _ in line})
    ys = log_ticks(*(limit(y for line in lines.values() for _, y in line) for limit in (min, max)))
    left, top = corner[0] + max_width((f"{y:,}" for y in ys), SMALL) + 8, corner[1] + 40
    right, bottom = corner[0] + size[0] - max_width(lines, SMALL) - 12, corner[1] + size[1] - 34

    def to_pixels(x: float, y: float) -> tuple[float, float]:
        return (
            left + (right - left) * log10(x / xs[0]) / log10(xs[-1] / xs[0]),
            bottom - (bottom - top) * log10(y / ys[0]) / log10(ys[-1] / ys[0]),
        )

    parts = [
        text(corner[0], corner[1] + 8, plot.header["title"], SIZE),
        small_text(corner[0], top - 14, plot.header["unit"]),
    ]
    parts.append(small_text(right, bottom + 28, plot.header["x"], "end"))
    grid_style: dict[str, str | float | None] = {"stroke": LIGHT.foreground, "stroke-opacity": 0.12}
    for y in ys:
        _, height = to_pixels(xs[0], y)
        parts.append(element("path", {"d": path_data("M", left, height, "H", right), **grid_style}))
        parts.append(small_text(left - 6, height, f"{y:,}", "end"))
    parts += [small_text(to_pixels(x, ys[0])[0], bottom + 12, f"{x:,}", "middle") for x in xs]
    return parts + _lines({name: [to_pixels(*point) for point in line] for name, line in lines.items()}, (top, bottom))


def _lines(lines: Mapping[str, list[tuple[float, float]]], span: tuple[float, float]) -> list[Element]:
    """Lines through points in pixels, each with its name at its end. span: top and bottom of the panel."""
    top, bottom = span
    order = sorted(lines, key=lambda name: lines[name][-1][1])
    heights = spread_labels([lines[name][-1][1] - top for name in order], [13.0] * len(order), bottom - top)
    parts = []
    for name, height in zip(order, heights, strict=True):
        points, colour = lines[name], HEED_COLOUR if name == "heed" else LIGHT.negative
        path = path_data(*(step for x, y in points for step in ("L", x, y)))
        parts.append(element("path", {"d": f"M{path[1:]}", "fill": "none", "stroke": colour, "stroke-width": 1.8}))
        parts += [element("circle", {"cx": x, "cy": y, "r": 2.6, "fill": colour}) for x, y in points]
        parts.append(text(points[-1][0] + 8, top + height, name, SMALL, colour=colour))
    return parts


def log_ticks(low: float, high: float) -> list[int]:
    """Round numbers from just below `low` to just above `high`: 10, 20, 50, 100, or for a short axis 10, 12, 15, 20."""
    digits = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8) if high < 3 * low else (1, 2, 5)
    candidates = [
        round(digit * 10.0**power) for power in range(floor(log10(low)), ceil(log10(high)) + 1) for digit in digits
    ]
    first = max(tick for tick in candidates if tick <= low)
    last = min(tick for tick in candidates if tick >= high)
    return [tick for tick in candidates if first <= tick <= last]


def charts(plots: Mapping[str, Plot]) -> dict[str, str]:
    """The SVG of every chart by its file name."""
    charted = {name: plot for name, plot in plots.items() if plot.header.get("chart", True)}
    svgs = {name: bar_chart(plot) for name, plot in charted.items() if "x" not in plot.header}
    for device, machine in (("cpu", "a CPU"), ("cuda", "a GPU")):
        panels = [charted[f"{name}-{device}"] for name in SCALING if f"{name}-{device}" in charted]
        if panels:
            title = f"Throughput and memory by length and batch size, on {machine}"
            svgs[f"growth-{device}"] = scaling_chart(panels, title)
    return {f"performance-{name}.svg": svg for name, svg in svgs.items()}
