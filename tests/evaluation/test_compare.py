import numpy as np
import pytest
import sacrebleu
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result

from heed.errors import DataError
from heed.evaluation.metrics import compare, disagreements, score
from tests.evaluation.examples import REFERENCES, damaged

GOOD, ALIKE, BAD = damaged(0.2, seed=1), damaged(0.2, seed=2), damaged(0.5, seed=3)


def test_a_clear_difference_is_found_and_the_p_value_is_sacrebleus_own() -> None:
    comparisons = {comparison.this.metric: comparison for comparison in compare(GOOD, BAD, REFERENCES, resamples=300)}
    peers = {"BLEU": BLEU(), "chrF2": CHRF(), "TER": TER()}
    _, columns = PairedTest([("bad", BAD), ("good", GOOD)], peers, [REFERENCES], "bs", 300)()
    for name in peers:
        bad, good = columns[name]
        assert isinstance(bad, Result)
        assert isinstance(good, Result)
        assert (comparisons[name].this.value, comparisons[name].other.value) == (good.score, bad.score)
        assert comparisons[name].p_value == good.p_value
    for comparison in comparisons.values():
        assert comparison.p_value < 0.01, comparison
        assert (comparison.difference < 0) == comparison.this.lower_is_better


def test_both_systems_scores_are_those_they_have_alone() -> None:
    comparisons = compare(GOOD, BAD, REFERENCES, resamples=100)
    for ours, single in zip(
        (comparison.this for comparison in comparisons), score(GOOD, REFERENCES, resamples=100), strict=True
    ):
        assert (ours.value, ours.signature) == (single.value, single.signature)
        assert (ours.mean, ours.half_width) == pytest.approx((single.mean, single.half_width))
    assert [comparison.other for comparison in comparisons] == score(BAD, REFERENCES, resamples=100)


def test_the_p_value_of_a_rate_equals_a_plain_paired_bootstrap() -> None:
    count, resamples = len(REFERENCES), 300
    matches = [
        np.array([text == reference for text, reference in zip(texts, REFERENCES, strict=True)])
        for texts in (ALIKE, GOOD, BAD)
    ]
    samples = np.random.default_rng(12345).choice(count, size=(resamples, count))
    for this, other, ours, theirs in ((GOOD, BAD, matches[1], matches[2]), (GOOD, ALIKE, matches[1], matches[0])):
        gaps = np.abs(ours[samples].mean(1) - theirs[samples].mean(1))
        larger = (gaps - gaps.mean() > abs(ours.mean() - theirs.mean())).sum()
        comparisons = {
            comparison.this.metric: comparison for comparison in compare(this, other, REFERENCES, resamples=resamples)
        }
        assert comparisons["exact match"].p_value == pytest.approx((larger + 1) / (resamples + 1))


def test_a_system_never_differs_from_itself() -> None:
    for comparison in compare(GOOD, GOOD, REFERENCES, resamples=100):
        assert (comparison.difference, comparison.p_value) == (0, 1)
    assert disagreements(GOOD, GOOD, REFERENCES, 5) == []


def test_equally_good_systems_are_not_told_apart() -> None:
    assert GOOD != ALIKE
    for comparison in compare(GOOD, ALIKE, REFERENCES, resamples=300):
        assert comparison.p_value > 0.05, comparison


def test_the_order_of_two_systems_changes_only_the_sign() -> None:
    forward, backward = compare(GOOD, BAD, REFERENCES, resamples=100), compare(BAD, GOOD, REFERENCES, resamples=100)
    for comparison, reverse in zip(forward, backward, strict=True):
        assert (comparison.difference, comparison.p_value) == (-reverse.difference, reverse.p_value)


def test_the_sentences_furthest_apart_come_first() -> None:
    disagreeing = disagreements(GOOD, BAD, REFERENCES, len(REFERENCES))
    gaps = [
        sacrebleu.sentence_chrf(good, [reference]).score - sacrebleu.sentence_chrf(bad, [reference]).score
        for good, bad, reference in zip(GOOD, BAD, REFERENCES, strict=True)
    ]
    assert {disagreement.index: disagreement.this - disagreement.other for disagreement in disagreeing} == {
        index: gap for index, gap in enumerate(gaps) if gap
    }
    assert [disagreement.index for disagreement in disagreeing] == sorted(
        (disagreement.index for disagreement in disagreeing), key=lambda index: -abs(gaps[index])
    )
    assert disagreements(GOOD, BAD, REFERENCES, 3) == disagreeing[:3]


def test_unequal_counts_are_refused() -> None:
    message = "1 translations cannot be scored against 2 references"
    with pytest.raises(DataError, match=message):
        compare(["a", "b"], ["a"], ["a", "b"])
    with pytest.raises(DataError, match=message):
        disagreements(["a", "b"], ["a"], ["a", "b"], 3)
