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
    found = {one.this.metric: one for one in compare(GOOD, BAD, REFERENCES, resamples=300)}
    peers = {"BLEU": BLEU(), "chrF2": CHRF(), "TER": TER()}
    _, columns = PairedTest([("bad", BAD), ("good", GOOD)], peers, [REFERENCES], "bs", 300)()
    for name in peers:
        bad, good = columns[name]
        assert isinstance(bad, Result)
        assert isinstance(good, Result)
        assert (found[name].this.value, found[name].other.value) == (good.score, bad.score)
        assert found[name].p_value == good.p_value
    for one in found.values():
        assert one.p_value < 0.01, one
        assert (one.difference < 0) == one.this.lower_is_better


def test_both_systems_scores_are_those_they_have_alone() -> None:
    found = compare(GOOD, BAD, REFERENCES, resamples=100)
    for mine, alone in zip((one.this for one in found), score(GOOD, REFERENCES, resamples=100), strict=True):
        assert (mine.value, mine.signature) == (alone.value, alone.signature)
        assert (mine.mean, mine.half_width) == pytest.approx((alone.mean, alone.half_width))
    assert [one.other for one in found] == score(BAD, REFERENCES, resamples=100)


def test_the_p_value_of_a_rate_equals_a_plain_paired_bootstrap() -> None:
    count, resamples = len(REFERENCES), 300
    right = [
        np.array([one == other for one, other in zip(texts, REFERENCES, strict=True)]) for texts in (ALIKE, GOOD, BAD)
    ]
    drawn = np.random.default_rng(12345).choice(count, size=(resamples, count))
    for this, other, ours, theirs in ((GOOD, BAD, right[1], right[2]), (GOOD, ALIKE, right[1], right[0])):
        gaps = np.abs(ours[drawn].mean(1) - theirs[drawn].mean(1))
        larger = (gaps - gaps.mean() > abs(ours.mean() - theirs.mean())).sum()
        found = {one.this.metric: one for one in compare(this, other, REFERENCES, resamples=resamples)}
        assert found["exact match"].p_value == pytest.approx((larger + 1) / (resamples + 1))


def test_a_system_never_differs_from_itself() -> None:
    for one in compare(GOOD, GOOD, REFERENCES, resamples=100):
        assert (one.difference, one.p_value) == (0, 1)
    assert disagreements(GOOD, GOOD, REFERENCES, 5) == []


def test_equally_good_systems_are_not_told_apart() -> None:
    assert GOOD != ALIKE
    for one in compare(GOOD, ALIKE, REFERENCES, resamples=300):
        assert one.p_value > 0.05, one


def test_the_order_of_two_systems_changes_only_the_sign() -> None:
    there, back = compare(GOOD, BAD, REFERENCES, resamples=100), compare(BAD, GOOD, REFERENCES, resamples=100)
    for one, other in zip(there, back, strict=True):
        assert (one.difference, one.p_value) == (-other.difference, other.p_value)


def test_the_sentences_furthest_apart_come_first() -> None:
    found = disagreements(GOOD, BAD, REFERENCES, len(REFERENCES))
    gaps = [
        sacrebleu.sentence_chrf(one, [wanted]).score - sacrebleu.sentence_chrf(other, [wanted]).score
        for one, other, wanted in zip(GOOD, BAD, REFERENCES, strict=True)
    ]
    assert {one.index: one.this - one.other for one in found} == {place: gap for place, gap in enumerate(gaps) if gap}
    assert [one.index for one in found] == sorted((one.index for one in found), key=lambda place: -abs(gaps[place]))
    assert disagreements(GOOD, BAD, REFERENCES, 3) == found[:3]


def test_unequal_counts_are_refused() -> None:
    message = "1 translations cannot be scored against 2 references"
    with pytest.raises(DataError, match=message):
        compare(["a", "b"], ["a"], ["a", "b"])
    with pytest.raises(DataError, match=message):
        disagreements(["a", "b"], ["a"], ["a", "b"], 3)
