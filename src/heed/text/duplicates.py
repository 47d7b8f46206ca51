"""Which of millions of numbered texts occur again, by their hashes."""

import numpy as np
from numpy.typing import NDArray

from heed.text.faults import Integers


def again(hashes: Integers, numbers: Integers) -> tuple[Integers, Integers]:
    """Those of the numbered texts that were there before, in order, and where each was the last time before."""
    ranked = np.sort(hashes[numbers])
    numbers = numbers[among(hashes[numbers], ranked[1:][ranked[1:] == ranked[:-1]])]  # only what occurs again at all
    numbers = numbers[np.argsort(hashes[numbers], kind="stable")]
    same = hashes[numbers[1:]] == hashes[numbers[:-1]]
    later, before = numbers[1:][same], numbers[:-1][same]
    order = np.argsort(later)
    return later[order], before[order]


def among(values: Integers, ranked: Integers) -> NDArray[np.bool_]:
    """Which of the values are among others, which are sorted; in less memory than numpy's isin."""
    place = np.searchsorted(ranked, values)
    place[place == len(ranked)] = 0
    return ranked[place] == values if len(ranked) else np.zeros(len(values), bool)
