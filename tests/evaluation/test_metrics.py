import functools
import json
import math
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from heed.errors import ConfigError, DataError
from heed.evaluation.metrics import Score, bleu, edit_distance, score
from heed.version import __version__
from tests.evaluation.examples import REFERENCES, damaged

HYPOTHESES = damaged(0.3, seed=1)


def by_name(scores: list[Score]) -> dict[str, Score]:
    return {metric_score.metric: metric_score for metric_score in scores}


def slow_edit_distance(hypothesis: Sequence[str], reference: Sequence[str]) -> int:
    """Levenshtein distance by its recursive definition."""

    @functools.cache
    def distance(i: int, j: int) -> int:
        if i == 0 or j == 0:
            return i + j
        same = distance(i - 1, j - 1) + (hypothesis[i - 1] != reference[j - 1])
        return min(same, distance(i - 1, j) + 1, distance(i, j - 1) + 1)

    return distance(len(hypothesis), len(reference))


def test_bleu_is_sacrebleus_own() -> None:
    hypotheses, references = ["the cat sat on the mat .", "a dog runs ."], ["the cat sat on a mat .", "A dog runs ."]
    assert bleu(hypotheses, references) == sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert bleu(references, references) == pytest.approx(100.0)


@pytest.mark.parametrize("tokenize", ["13a", "none", "intl", "char"])
def test_score_interval_and_signature_are_sacrebleus_own(tokenize: str) -> None:
    scores = by_name(score(HYPOTHESES, REFERENCES, tokenize, resamples=200))
    peers = {
        "BLEU": BLEU(tokenize=tokenize),
        "BLEU lowercased": BLEU(tokenize=tokenize, lowercase=True),
        "chrF2": CHRF(),
        "TER": TER(),
    }
    for name, peer in peers.items():
        expected = peer.corpus_score(HYPOTHESES, [REFERENCES], n_bootstrap=200)
        numbers = (scores[name].value, scores[name].mean, scores[name].half_width)
        assert numbers == pytest.approx((expected.score, expected._mean, expected._ci)), name
        assert scores[name].signature == str(peer.get_signature())
        assert scores[name].short_signature == peer.get_signature().format(short=True)
    assert "bs:200|seed:12345" in scores["BLEU"].signature


def test_the_sacrebleu_command_prints_the_same_scores(tmp_path: Path) -> None:
    for name, lines in (("hyp", HYPOTHESES), ("ref", REFERENCES)):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
    options = ["-m", "bleu", "chrf", "ter", "--confidence", "--confidence-n", "100", "--format", "json", "-w", "6"]
    command = [sys.executable, "-m", "sacrebleu", str(tmp_path / "ref"), "-i", str(tmp_path / "hyp"), *options]
    printed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    scores = by_name(score(HYPOTHESES, REFERENCES, resamples=100))
    assert len(printed) == 3
    for peer in printed:
        ours = scores[peer["name"]]
        assert ours.value == pytest.approx(peer["score"], abs=1e-6)
        assert (ours.mean, ours.half_width) == pytest.approx(
            (peer["confidence_mean"], peer["confidence_var"]), abs=1e-4
        )
        assert ours.signature == peer["signature"]


def test_lowercased_bleu_is_bleu_of_lowercased_text() -> None:
    lower = [[text.lower() for text in texts] for texts in (HYPOTHESES, REFERENCES)]
    scores = by_name(score(HYPOTHESES, REFERENCES, resamples=40))
    assert scores["BLEU lowercased"].value == bleu(*lower)
    assert scores["BLEU lowercased"].value > scores["BLEU"].value


def test_edit_distance_equals_its_definition() -> None:
    dice = random.Random(3)
    for _ in range(300):
        hypothesis, reference = (dice.choices("abc", k=dice.randrange(9)) for _ in range(2))
        assert edit_distance(hypothesis, reference) == slow_edit_distance(hypothesis, reference)


def test_exact_match_and_token_error_rate_equal_their_definitions() -> None:
    scores = by_name(score(HYPOTHESES, REFERENCES, resamples=40))
    pairs = list(zip(HYPOTHESES, REFERENCES, strict=True))
    assert scores["exact match"].value == pytest.approx(
        100 * sum(hypothesis == reference for hypothesis, reference in pairs) / len(pairs)
    )
    errors = sum(slow_edit_distance(hypothesis.split(), reference.split()) for hypothesis, reference in pairs)
    assert scores["token error rate"].value == pytest.approx(
        100 * errors / sum(len(text.split()) for text in REFERENCES)
    )
    signature = f"nrefs:1|bs:40|seed:12345|case:mixed|tok:space|version:heed-{__version__}"
    assert scores["token error rate"].signature == signature
    assert {metric_score.metric for metric_score in scores.values() if metric_score.lower_is_better} == {
        "TER",
        "token error rate",
    }


@pytest.mark.parametrize(
    ("hypotheses", "references", "exact", "errors"),
    [
        (["k æ t ", "d ɒ ɡ"], ["k æ t", "d ɔ ɡ"], 50, 100 / 6),  # except for white space at the ends
        (["A", "b"], ["a", "b"], 50, 50),  # case counts
        (["a b c d"], ["a"], 0, 300),  # more errors than words
        (["", "b"], ["a", "b"], 50, 50),
        (["x", "b"], ["", "b"], 50, 100),  # every token against an empty reference is an error
    ],
)
def test_rates_equal_values_computed_by_hand(
    hypotheses: list[str], references: list[str], exact: float, errors: float
) -> None:
    scores = by_name(score(hypotheses, references, resamples=40))
    assert scores["exact match"].value == pytest.approx(exact)
    assert scores["token error rate"].value == pytest.approx(errors)


def test_a_rates_interval_equals_a_plain_bootstrap() -> None:
    resamples, count = 500, len(REFERENCES)
    errors = np.array(
        [
            edit_distance(hypothesis.split(), reference.split())
            for hypothesis, reference in zip(HYPOTHESES, REFERENCES, strict=True)
        ]
    )
    words = np.array([len(text.split()) for text in REFERENCES])
    samples = np.random.default_rng(12345).choice(count, size=(resamples, count))
    rates = np.sort([100 * errors[row].sum() / words[row].sum() for row in samples])
    low, high = rates[resamples // 40], rates[-1 - resamples // 40]
    rate = by_name(score(HYPOTHESES, REFERENCES, resamples=resamples))["token error rate"]
    assert (rate.mean, rate.half_width) == pytest.approx((rates.mean(), (high - low) / 2), rel=1e-5)


def test_the_interval_of_exact_match_is_the_binomials() -> None:
    matches, count = 100, 400
    rate = by_name(score(["a"] * matches + ["b"] * (count - matches), ["a"] * count, resamples=1000))["exact match"]
    share = matches / count
    assert rate.mean == pytest.approx(100 * share, abs=0.2)
    assert rate.half_width == pytest.approx(196 * math.sqrt(share * (1 - share) / count), rel=0.1)


def test_unequal_counts_are_refused() -> None:
    for function in (bleu, score):
        with pytest.raises(DataError, match="2 translations cannot be scored against 1 references"):
            function(["a", "b"], ["a"])


@pytest.mark.parametrize("references", [[], ["", " "]])
def test_empty_references_are_refused(references: list[str]) -> None:
    for function in (bleu, score):
        with pytest.raises(DataError, match=f"nothing to score against: all {len(references)} references are empty"):
            function(["a"] * len(references), references)


def test_more_resamples_than_memory_holds_are_refused() -> None:
    with pytest.raises(DataError, match=r"80,000,000 resamples of 80 sentences .* use at most 625,000 resamples"):
        score(HYPOTHESES, REFERENCES, resamples=80_000_000)


def test_a_tokenizer_that_cannot_be_used_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="sacreBLEU has no tokenizer '13b': did you mean '13a'"):
        score(HYPOTHESES, REFERENCES, "13b")
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    with pytest.raises(ConfigError, match=r"tokenizer 'ja-mecab': .*pip install sacrebleu\[ja\]"):
        score(HYPOTHESES, REFERENCES, "ja-mecab")
