"""Scores of translations against references, by sacreBLEU."""

from collections.abc import Sequence

from sacrebleu.metrics.bleu import BLEU

from heed.errors import DataError


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU as sacreBLEU computes it by default: cased, tokenised by 13a.

    force: sacreBLEU says nothing about text that looks tokenised already; whoever trains on such text knows.
    """
    if len(hypotheses) != len(references):
        raise DataError(f"{len(hypotheses)} translations cannot be scored against {len(references)} references")
    return float(BLEU(force=True).corpus_score(list(hypotheses), [list(references)]).score)
