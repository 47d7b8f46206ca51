"""Where labels stand beside the ends of lines: near them, and not over each other."""

from collections.abc import Sequence

import numpy as np


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
