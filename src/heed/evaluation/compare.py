"""Two systems on the same sentences: is one better, and where do they differ most?

Enters: two translations of each sentence, and its reference. Leaves: both systems' scores with the p-value of each
difference, and the sentences on which they are furthest apart. Knows nothing of files.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.chrf import CHRF

from heed.evaluation.metrics import RESAMPLES, TOKENIZE, Score, check_counts, metrics, resampled


@dataclass(frozen=True)
class Comparison:
    """One metric of both systems, and how easily chance alone would make a difference as large (paired bootstrap)."""

    this: Score
    other: Score
    p_value: float

    @property
    def difference(self) -> float:
        """How much higher this system's value is; whether that is better, the metric decides."""
        return self.this.value - self.other.value


@dataclass(frozen=True)
class Disagreement:
    """A sentence, by its index, and the chrF of both systems on it."""

    place: int
    this: float
    other: float


def compare(
    this: Sequence[str],
    other: Sequence[str],
    references: Sequence[str],
    tokenize: str = TOKENIZE,
    resamples: int = RESAMPLES,
) -> list[Comparison]:
    """Every metric of both systems, with sacreBLEU's paired bootstrap.

    Its p-value is one-sided: the chance of so much of a lead for the one that leads. Where both have the same score
    it is 1 here: sacreBLEU counts resamples that differ by more, finds none, and would call nothing significant.
    """
    comparisons = []
    for name, metric in metrics(tokenize).items():
        (theirs, ours), (_, p_value) = resampled(name, metric, [other, this], references, resamples)
        comparisons.append(Comparison(ours, theirs, 1.0 if p_value is None or ours.value == theirs.value else p_value))
    return comparisons


def disagreements(
    this: Sequence[str], other: Sequence[str], references: Sequence[str], most: int
) -> list[Disagreement]:
    """The sentences on which chrF tells the two systems furthest apart, widest first, ties in the text's order."""
    check_counts(this, references)
    check_counts(other, references)
    chrf = CHRF()
    different = [
        Disagreement(place, *(chrf.sentence_score(sentence, [reference]).score for sentence in (ours, theirs)))
        for place, (ours, theirs, reference) in enumerate(zip(this, other, references, strict=True))
        if ours != theirs
    ]
    apart = [sentence for sentence in different if sentence.this != sentence.other]
    return sorted(apart, key=lambda sentence: -abs(sentence.this - sentence.other))[:most]
