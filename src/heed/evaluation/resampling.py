"""How sure a score is: what it would have been on other test sets like this one.

Enters: a number of texts and a score as a function of which of them are in the test set. Leaves: the mean over test
sets drawn from it with replacement, and half the width of the interval that 95 % of them lie in (Koehn, 2004).
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Int

SEED = 12345  # sacreBLEU's own
RESAMPLES = 1000


def interval(
    texts: int, score: Callable[[Int[np.ndarray, "texts"]], float], resamples: int = RESAMPLES
) -> tuple[float, float]:
    """The mean, and half the width of the interval around it."""
    random = np.random.default_rng(SEED)
    found = np.sort([score(random.integers(texts, size=texts)) for _ in range(resamples)])
    low, high = np.percentile(found, [2.5, 97.5])
    return float(found.mean()), float(high - low) / 2
