"""The result of an experiment: measurements over several seeds, a verdict, and where they were made.

Enters: measured numbers. Leaves: JSON and back, means with 95 % intervals, and charts. Knows no experiment.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

import numpy as np

from heed.errors import FolderError
from heed.plots.chart import curve
from heed.plots.intervals import intervals
from heed.untrusted import parse_json, read_regular

Scale = Literal["smallest", "small", "full"]
Verdict = Literal["holds", "holds in part", "does not hold here"]

# Student's t for a two-sided interval of 95 %, by degrees of freedom; beyond the table the normal distribution's.
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
_NORMAL = 1.96


@dataclass(frozen=True)
class Series:
    """One curve: for each x the values that different seeds gave."""

    name: str
    x: list[float]
    values: list[list[float]]

    @classmethod
    def of_runs(cls, name: str, x: Sequence[float], runs: Sequence[Sequence[float]]) -> "Series":
        """The curve of several runs, each of which gave a value for each x."""
        return cls(name, [float(at) for at in x], [list(values) for values in zip(*runs, strict=True)])

    def at(self, x: float) -> float:
        """The mean at this x."""
        return fmean(self.values_at(x))

    def values_at(self, x: float) -> list[float]:
        """The values of all seeds at this x."""
        return self.values[self.x.index(x)]

    def means(self) -> list[float]:
        return [fmean(values) for values in self.values]

    def half_widths(self) -> list[float]:
        """Of the 95 % confidence interval of each mean; 0 for a single value."""
        return [_half_width(values) for values in self.values]


def _half_width(values: Sequence[float]) -> float:
    freedom = len(values) - 1
    if freedom < 1:
        return 0.0
    t = _T[freedom - 1] if freedom <= len(_T) else _NORMAL
    return t * stdev(values) / math.sqrt(len(values))


def is_less(values: Sequence[float], others: Sequence[float]) -> bool:
    """Whether the mean of some values is below that of others by more than the 95 % intervals of both explain."""
    return fmean(others) - fmean(values) > math.hypot(_half_width(values), _half_width(others))


@dataclass(frozen=True)
class Panel:
    """One chart: curves over the same axes."""

    x_label: str
    y_label: str
    series: list[Series]
    log: str = ""  # logarithmic axes: x, y or xy
    rows: list[str] = field(default_factory=list)  # names of x = 0, 1, …; given: a chart of rows instead of curves

    def named(self, name: str) -> Series:
        return next(series for series in self.series if series.name == name)

    def svg(self, title: str = "") -> str:
        """The chart; a value of 0 has no place on a logarithmic axis and is left out."""
        if self.rows:
            (series,) = self.series
            return intervals(self.rows, np.array(series.means()), np.array(series.half_widths()), self.y_label, title)
        lines = {}
        for series in self.series:
            y = np.array(series.means())
            lines[series.name] = np.array(series.x), np.where((y > 0) | ("y" not in self.log), y, np.nan)
        return curve(lines, self.x_label, self.y_label, title, log=self.log)


@dataclass(frozen=True)
class ClaimResult:
    """What an experiment found."""

    claim: str
    scale: Scale
    panels: list[Panel]
    verdict: Verdict
    finding: str  # one sentence, with numbers
    hardware: str
    date: str
    seconds: float
    corpus: str = ""  # the natural text that was measured on: names, sizes and digests of its files
    notes: list[str] = field(default_factory=list)  # how the models were chosen, for example

    def write(self, path: Path) -> None:
        """Write JSON; a number that is not finite becomes null."""
        text = json.dumps(_finite(asdict(self)), ensure_ascii=False, indent=1)
        new = path.with_name(f".{path.name}.writing")
        new.write_text(text + "\n", encoding="utf-8")
        new.replace(path)

    @classmethod
    def read(cls, path: Path) -> "ClaimResult":
        """The inverse of `write`."""
        try:
            content = parse_json(read_regular(path))
            panels = [
                Panel(**{**panel, "series": [Series(**series) for series in panel["series"]]})
                for panel in content["panels"]
            ]
            return cls(**{**content, "panels": panels})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FolderError(f"{path} is no result of heed claims: {error!r}. Remove it") from None


def _finite(value: Any) -> Any:
    match value:
        case Mapping():
            return {name: _finite(inner) for name, inner in value.items()}
        case list():
            return [_finite(inner) for inner in value]
        case float():
            return value if math.isfinite(value) else None
        case _:
            return value
