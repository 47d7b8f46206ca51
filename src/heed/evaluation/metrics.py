"""Translation metrics (sacreBLEU's BLEU, chrF, TER; exact match; token error rate) with bootstrap intervals.

Enters: translations and one reference each. Leaves: a `Score` for each metric, with its signature and 95 % interval;
for two systems a paired bootstrap test and the sentences on which they differ most. The only randomness is the
bootstrap, whose seed is in every signature. Knows nothing of files.

    BLEU                cased, tokenised by 13a by default
    BLEU lowercased     lower-cased: what papers call tokenised lowercased BLEU
    chrF2               character n-gram F-score
    TER                 edits and shifts per reference word; lower-cased, sacreBLEU's default
    exact match         percentage of translations equal to their reference, leading and trailing white space aside
    token error rate    insertions, deletions and substitutions per reference token, where white space separates tokens:
                        the word (or phoneme) error rate; token accuracy is 100 minus this
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from sacrebleu.metrics.base import Metric, Signature
from sacrebleu.metrics.base import Score as MetricScore
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result

from heed.errors import ConfigError, DataError
from heed.settings import did_you_mean
from heed.version import __version__

SEED = 12345  # sacreBLEU's default
RESAMPLES = 1000
TOKENIZE = "13a"
_LOWER_IS_BETTER = ("TER", "token error rate", "perplexity", "bits per byte", "nats per text")
_MAX_DRAWN = 50_000_000  # resampled sentences in total: sacreBLEU holds all of them, about 80 bytes each


@dataclass(frozen=True)
class Score:
    """One metric's value and its 95 % bootstrap interval, mean ± half_width."""

    metric: str
    value: float
    mean: float
    half_width: float
    signature: str
    short_signature: str

    @property
    def lower_is_better(self) -> bool:
        """Whether the metric measures errors."""
        return self.metric in _LOWER_IS_BETTER


def bootstrap_interval(
    texts: int, score: Callable[[Int[np.ndarray, "texts"]], float], resamples: int = RESAMPLES
) -> tuple[float, float]:
    """The mean of a score over bootstrap resamples of texts, and half the width of its 95 % interval.

    score: maps the text indices of a resample to its score.
    """
    random = np.random.default_rng(SEED)
    scores = np.sort([score(random.integers(texts, size=texts)) for _ in range(resamples)])
    low, high = np.percentile(scores, [2.5, 97.5])
    return float(scores.mean()), float(high - low) / 2


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU as sacreBLEU computes it by default: cased, tokenised by 13a."""
    check_counts(hypotheses, references)
    return float(_bleu(TOKENIZE, lowercase=False).corpus_score(list(hypotheses), [list(references)]).score)


def score(
    hypotheses: Sequence[str], references: Sequence[str], tokenize: str = TOKENIZE, resamples: int = RESAMPLES
) -> list[Score]:
    """Scores of every metric. tokenize: sacreBLEU's name of BLEU's tokenizer; "none" for pre-tokenised text."""
    return [
        score_with_bootstrap(name, metric, [hypotheses], references, resamples)[0][0]
        for name, metric in metrics(tokenize).items()
    ]


def metrics(tokenize: str = TOKENIZE) -> dict[str, Metric]:
    """The metrics by name, as listed in the module docstring."""
    return {
        "BLEU": _bleu(tokenize, lowercase=False),
        "BLEU lowercased": _bleu(tokenize, lowercase=True),
        "chrF2": CHRF(),
        "TER": TER(),
        "exact match": _PercentageMetric(_exact_match, "none"),
        "token error rate": _PercentageMetric(_token_errors, "space"),
    }


def score_with_bootstrap(
    name: str, metric: Metric, systems: Sequence[Sequence[str]], references: Sequence[str], resamples: int
) -> tuple[list[Score], list[float | None]]:
    """Each system's score, and the p-value of its difference from the first system (sacreBLEU's paired bootstrap)."""
    for hypotheses in systems:
        check_counts(hypotheses, references)
    if len(references) * resamples > _MAX_DRAWN:
        raise DataError(
            f"{resamples:,} resamples of {len(references):,} sentences do not fit into memory: "
            f"use at most {_MAX_DRAWN // len(references):,} resamples"
        )
    named: list[tuple[str, Sequence[str]]] = [
        (str(index), list(hypotheses)) for index, hypotheses in enumerate(systems)
    ]
    signatures, columns = PairedTest(named, {name: metric}, [list(references)], "bs", resamples)()
    ((metric_name, signature),) = signatures.items()
    results = [result for result in columns[metric_name] if isinstance(result, Result)]
    texts = (signature.format(), signature.format(short=True))
    scores = [Score(name, float(r.score), float(r.mean or 0), float(r.ci or 0), *texts) for r in results]
    return scores, [result.p_value for result in results]


def check_counts(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Raise unless there is one translation per reference, and a reference that is not empty."""
    if len(hypotheses) != len(references):
        raise DataError(f"{len(hypotheses)} translations cannot be scored against {len(references)} references")
    if not any(reference.strip() for reference in references):
        raise DataError(f"nothing to score against: all {len(references)} references are empty")


def edit_distance(hypothesis: Sequence[str], reference: Sequence[str]) -> int:
    """Levenshtein distance: the fewest insertions, deletions and substitutions."""
    row = list(range(len(reference) + 1))  # distances from a prefix of the hypothesis to each prefix of the reference
    for length, token in enumerate(hypothesis, 1):
        previous, row = row, [length]
        for index, expected in enumerate(reference):
            row.append(min(previous[index] + (token != expected), previous[index + 1] + 1, row[index] + 1))
    return row[-1]


def _bleu(tokenize: str, *, lowercase: bool) -> BLEU:
    """force=True: no warning about text that looks tokenised."""
    if tokenize not in BLEU.TOKENIZERS:
        raise ConfigError(f"sacreBLEU has no tokenizer {tokenize!r}: {did_you_mean(tokenize, BLEU.TOKENIZERS)}")
    try:
        return BLEU(lowercase=lowercase, force=True, tokenize=tokenize)
    except (ImportError, RuntimeError, OSError) as error:  # some tokenizers need an optional package or a download
        raise ConfigError(f"sacreBLEU's tokenizer {tokenize!r}: {' '.join(str(error).split())}") from None


def _exact_match(hypothesis: str, reference: str) -> tuple[int, int]:
    return int(hypothesis.strip() == reference.strip()), 1


def _token_errors(hypothesis: str, reference: str) -> tuple[int, int]:
    tokens = reference.split()
    return edit_distance(hypothesis.split(), tokens), len(tokens)


class _PercentageMetric(Metric):
    """A ratio of per-sentence counts in percent, as a sacreBLEU metric, so that its bootstrap applies.

    As in sacreBLEU's TER, if the total is 0, a count of 0 is 0 % and any other is 100 %.
    """

    def __init__(self, count: Callable[[str, str], tuple[int, int]], tokenize: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._count = count
        self._tokenize = tokenize

    def get_signature(self) -> Signature:
        return _PercentageSignature(vars(self), self._tokenize)

    def _preprocess_segment(self, sent: str) -> str:
        return sent

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {"reference": refs[0]}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[int]:
        return list(self._count(hypothesis, ref_kwargs["reference"]))

    def _aggregate_and_compute(self, stats: list[list[int]]) -> MetricScore:
        return self._compute_score_from_stats([sum(column) for column in zip(*stats, strict=True)])

    def _compute_score_from_stats(self, stats: Sequence[float] | Float[np.ndarray, "2"]) -> MetricScore:
        count, total = stats
        return MetricScore("rate", 100 * (count / total if total else float(count > 0)))


class _PercentageSignature(Signature):
    def __init__(self, args: dict[str, Any], tokenize: str) -> None:
        super().__init__(args)
        self._abbr.update(case="c", tok="tok")
        self.info.update(case="mixed", tok=tokenize, version=f"heed-{__version__}")


@dataclass(frozen=True)
class Comparison:
    """One metric of two systems, and the p-value of their difference (paired bootstrap)."""

    this: Score
    other: Score
    p_value: float

    @property
    def difference(self) -> float:
        """This system's value minus the other's; `lower_is_better` says which sign is better."""
        return self.this.value - self.other.value


@dataclass(frozen=True)
class Disagreement:
    """The index of a sentence and its chrF under both systems."""

    index: int
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

    The p-value is one-sided: the probability of so large a lead by chance. It is set to 1 if both scores are equal,
    where sacreBLEU's count of resamples with a larger difference is 0 and would look significant.
    """
    comparisons = []
    for name, metric in metrics(tokenize).items():
        (theirs, ours), (_, p_value) = score_with_bootstrap(name, metric, [other, this], references, resamples)
        comparisons.append(Comparison(ours, theirs, 1.0 if p_value is None or ours.value == theirs.value else p_value))
    return comparisons


def disagreements(
    this: Sequence[str], other: Sequence[str], references: Sequence[str], max_count: int
) -> list[Disagreement]:
    """The sentences with the largest chrF difference between two systems, largest first, ties in text order."""
    check_counts(this, references)
    check_counts(other, references)
    chrf = CHRF()
    different = [
        Disagreement(index, *(chrf.sentence_score(sentence, [reference]).score for sentence in (ours, theirs)))
        for index, (ours, theirs, reference) in enumerate(zip(this, other, references, strict=True))
        if ours != theirs
    ]
    scored_differently = [sentence for sentence in different if sentence.this != sentence.other]
    return sorted(scored_differently, key=lambda sentence: -abs(sentence.this - sentence.other))[:max_count]
