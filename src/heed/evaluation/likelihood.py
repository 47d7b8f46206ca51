"""How well a language model knows texts.

Enters: for each text the natural logarithm of its probability, its tokens and its bytes. Leaves: scores.

    perplexity       e to the mean number of nats a token: depends on how text is cut, so compare only where that is
                     the same
    bits per byte    bits that the texts would take, compressed by the model, for each of their bytes: comparable
                     across tokenizers
    nats per text    the cross-entropy itself

The end of a text is a token like others, and counts as one byte: in its file it has a line end.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int

from heed.errors import DataError
from heed.evaluation.metrics import Score
from heed.evaluation.resampling import RESAMPLES, SEED, interval
from heed.version import __version__


def likelihood(
    log_probs: Sequence[float], tokens: Sequence[int], texts: Sequence[str], resamples: int = RESAMPLES
) -> list[Score]:
    """The scores of texts whose probabilities, ends included, are given; tokens count the ends too."""
    if not texts:
        raise DataError("there is nothing to score: no text")
    nats, counts = -np.array(log_probs), np.array(tokens)
    sizes = np.array([len(text.encode()) + 1 for text in texts])
    measures: dict[str, Callable[[Int[np.ndarray, texts]], float]] = {
        "perplexity": lambda some: math.exp(min(nats[some].sum() / counts[some].sum(), 700.0)),
        "bits per byte": lambda some: float(nats[some].sum() / sizes[some].sum() / math.log(2)),
        "nats per text": lambda some: float(nats[some].mean()),
    }
    everything = np.arange(len(texts))
    long = f"texts:{len(texts)}|end:1 token, 1 byte|bs:{resamples}|seed:{SEED}|version:heed-{__version__}"
    short = f"#:{len(texts)}|end:1|bs:{resamples}|rs:{SEED}|v:heed-{__version__}"
    return [
        Score(name, measure(everything), *interval(len(texts), measure, resamples), long, short)
        for name, measure in measures.items()
    ]
