"""Metrics of translations: sacreBLEU's BLEU, chrF and TER, and two plain rates, each with its signature and interval.

Two systems are compared by paired bootstrap: is one better, and where do they differ.

Enters: translations and their references, one for each. Leaves: a `Score` for each metric. All that is random is
sacreBLEU's bootstrap, whose seed stands in every signature. Knows nothing of files.

    BLEU                cased, tokenised by 13a unless told otherwise
    BLEU lowercased     BLEU in lower case: what papers call tokenised lowercased BLEU
    chrF2               character n-grams
    TER                 edits and shifts a reference word; sacreBLEU's default is in lower case
    exact match         translations that are their reference, white space at the ends aside
    token error rate    insertions, deletions and substitutions a reference token, tokens being what white space
                        parts: the word (or phoneme) error rate; token accuracy is 100 less it
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

SEED = 12345  # sacreBLEU's own
RESAMPLES = 1000
TOKENIZE = "13a"
_LOWER_IS_BETTER = ("TER", "token error rate", "perplexity", "bits per byte", "nats per text")
_MOST_DRAWN = 50_000_000  # sentences drawn in all: sacreBLEU holds them all at once, some 80 bytes each


@dataclass(frozen=True)
class Score:
    """One metric's value, and the 95 % interval, mean ± half_width, of its bootstrap."""

    metric: str
    value: float
    mean: float
    half_width: float
    signature: str
    short_signature: str

    @property
    def lower_is_better(self) -> bool:
        """Whether the metric counts mistakes."""
        return self.metric in _LOWER_IS_BETTER


def bootstrap_interval(
    texts: int, score: Callable[[Int[np.ndarray, "texts"]], float], resamples: int = RESAMPLES
) -> tuple[float, float]:
    """The mean of a score over bootstrap resamples of texts, and half the width of its 95 % interval.

    score: of a sample, given as the indices of its texts.
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
    """Every metric's score. tokenize: sacreBLEU's name of BLEU's tokenizer, "none" for text that is tokenised."""
    return [
        score_with_bootstrap(name, metric, [hypotheses], references, resamples)[0][0]
        for name, metric in metrics(tokenize).items()
    ]


def metrics(tokenize: str = TOKENIZE) -> dict[str, Metric]:
    """The metrics, by the names that this module's table explains."""
    return {
        "BLEU": _bleu(tokenize, lowercase=False),
        "BLEU lowercased": _bleu(tokenize, lowercase=True),
        "chrF2": CHRF(),
        "TER": TER(),
        "exact match": _Rate(_exact, "none"),
        "token error rate": _Rate(_token_errors, "space"),
    }


def score_with_bootstrap(
    name: str, metric: Metric, systems: Sequence[Sequence[str]], references: Sequence[str], resamples: int
) -> tuple[list[Score], list[float | None]]:
    """Each system's score, and sacreBLEU's p-value of its difference from the first one."""
    for hypotheses in systems:
        check_counts(hypotheses, references)
    if len(references) * resamples > _MOST_DRAWN:
        raise DataError(
            f"{resamples:,} resamples of {len(references):,} sentences do not fit into memory: "
            f"ask for at most {_MOST_DRAWN // len(references):,} resamples"
        )
    named: list[tuple[str, Sequence[str]]] = [
        (str(number), list(hypotheses)) for number, hypotheses in enumerate(systems)
    ]
    signatures, columns = PairedTest(named, {name: metric}, [list(references)], "bs", resamples)()
    ((own_name, signature),) = signatures.items()
    results = [result for result in columns[own_name] if isinstance(result, Result)]
    texts = (signature.format(), signature.format(short=True))
    scores = [Score(name, float(r.score), float(r.mean or 0), float(r.ci or 0), *texts) for r in results]
    return scores, [result.p_value for result in results]


def check_counts(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """One translation for each reference, and something to compare with."""
    if len(hypotheses) != len(references):
        raise DataError(f"{len(hypotheses)} translations cannot be scored against {len(references)} references")
    if not any(reference.strip() for reference in references):
        raise DataError(f"there is nothing to score against: {len(references)} references, and none with any text")


def edit_distance(one: Sequence[str], other: Sequence[str]) -> int:
    """The fewest insertions, deletions and substitutions that turn one into the other (Levenshtein)."""
    row = list(range(len(other) + 1))  # distances from what is read of `one` to each beginning of `other`
    for count, item in enumerate(one, 1):
        before, row = row, [count]
        for place, wanted in enumerate(other):
            row.append(min(before[place] + (item != wanted), before[place + 1] + 1, row[place] + 1))
    return row[-1]


def _bleu(tokenize: str, *, lowercase: bool) -> BLEU:
    """force: sacreBLEU says nothing about text that looks tokenised already; whoever scores such text knows."""
    if tokenize not in BLEU.TOKENIZERS:
        raise ConfigError(f"sacreBLEU has no tokenizer {tokenize!r}: {did_you_mean(tokenize, BLEU.TOKENIZERS)}")
    try:
        return BLEU(lowercase=lowercase, force=True, tokenize=tokenize)
    except (ImportError, RuntimeError, OSError) as error:  # some need a package or a file that is not there
        raise ConfigError(f"sacreBLEU's tokenizer {tokenize!r}: {' '.join(str(error).split())}") from None


def _exact(hypothesis: str, reference: str) -> tuple[int, int]:
    return int(hypothesis.strip() == reference.strip()), 1


def _token_errors(hypothesis: str, reference: str) -> tuple[int, int]:
    wanted = reference.split()
    return edit_distance(hypothesis.split(), wanted), len(wanted)


class _Rate(Metric):
    """So many of so many, in percent, counted sentence by sentence; a sacreBLEU metric, for its bootstrap and test.

    As in its TER, where there are none to count, nothing found is 0 % and anything found is 100 %.
    """

    def __init__(self, count: Callable[[str, str], tuple[int, int]], tokenize: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._count = count
        self._tokenize = tokenize

    def get_signature(self) -> Signature:
        return _RateSignature(vars(self), self._tokenize)

    def _preprocess_segment(self, sent: str) -> str:
        return sent

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {"reference": refs[0]}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[int]:
        return list(self._count(hypothesis, ref_kwargs["reference"]))

    def _aggregate_and_compute(self, stats: list[list[int]]) -> MetricScore:
        return self._compute_score_from_stats([sum(column) for column in zip(*stats, strict=True)])

    def _compute_score_from_stats(self, stats: Sequence[float] | Float[np.ndarray, "2"]) -> MetricScore:
        found, total = stats
        return MetricScore("rate", 100 * (found / total if total else float(found > 0)))


class _RateSignature(Signature):
    """What makes a rate comparable with another."""

    def __init__(self, args: dict[str, Any], tokenize: str) -> None:
        super().__init__(args)
        self._abbr.update(case="c", tok="tok")
        self.info.update(case="mixed", tok=tokenize, version=f"heed-{__version__}")


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

    Its p-value is one-sided: the chance of so much of a lead for the one that leads. Where both have the same score
    it is 1 here: sacreBLEU counts resamples that differ by more, finds none, and would call nothing significant.
    """
    comparisons = []
    for name, metric in metrics(tokenize).items():
        (theirs, ours), (_, p_value) = score_with_bootstrap(name, metric, [other, this], references, resamples)
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
