"""How long a target may be, given its source: a bound fitted to the training pairs.

Enters: the token counts of sources and targets. Leaves: a `LengthBound`, ratio · source tokens + extra, which every
training pair keeps to with 20 % to spare. The paper's bound, source tokens + 50, is the least.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_SPARE = 1.2  # outputs may be this much longer than the targets of training


@dataclass(frozen=True)
class LengthBound:
    """At most ratio · source tokens + extra target tokens."""

    ratio: float = 1.0
    extra: int = 50

    def __str__(self) -> str:
        factor = "" if self.ratio == 1 else f"{self.ratio:g} × "
        return f"{factor}source tokens + {self.extra}"


def fit_length_bound(sources: NDArray[np.int64], targets: NDArray[np.int64]) -> LengthBound:
    """The tightest linear bound on the target tokens of all pairs, multiplied by 1.2; at least the paper's.

    Tightest for a source of mean length: of the lines above all pairs, it is the edge of their upper convex hull over
    the mean. So a few odd pairs with a short source and a long target raise `extra`, not the ratio.
    """
    paper = LengthBound()
    longest = np.zeros(int(sources.max()) + 1)  # target, by source length
    np.maximum.at(longest, sources, targets * _SPARE)
    lengths = np.flatnonzero(longest)
    if len(lengths) == 0 or (longest[lengths] <= paper.ratio * lengths + paper.extra).all():
        return paper
    hull = _upper_hull([(int(length), float(longest[length])) for length in lengths])
    mean = sources.mean()
    left, right = next(((a, b) for a, b in pairwise(hull) if b[0] >= mean), (hull[-1], hull[-1]))
    slope = (right[1] - left[1]) / (right[0] - left[0]) if right[0] > left[0] else 0.0
    ratio = max(paper.ratio, math.ceil(100 * slope) / 100)
    extra = max(longest[length] - ratio * length for length in lengths.tolist())
    return LengthBound(ratio, max(paper.extra, math.ceil(extra)))


def _upper_hull(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """The upper convex hull of points in ascending order of x."""
    hull: list[tuple[int, float]] = []
    for x, y in points:
        while len(hull) > 1 and _is_below(hull[-1], hull[-2], (x, y)):
            hull.pop()
        hull.append((x, y))
    return hull


def _is_below(point: tuple[int, float], left: tuple[int, float], right: tuple[int, float]) -> bool:
    """Whether a point is on or below the line from `left` to `right`."""
    slope = (right[1] - left[1]) / (right[0] - left[0])
    return point[1] <= left[1] + slope * (point[0] - left[0])
