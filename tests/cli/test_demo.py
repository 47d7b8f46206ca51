import random
import re
from pathlib import Path

import pytest

from heed import load
from heed.artifacts.manifest import verify
from heed.cli.demo import WINOGRAD
from heed.text.sentences import sentence_starts
from tests.cli.command import heed


def test_the_demo_trains_scores_translates_and_looks(tmp_path: Path) -> None:
    run = heed("demo", "--steps", "6", "--out", str(tmp_path / "demo"))
    assert run.returncode == 0, run.stderr
    assert re.search(
        r"Test set: [\d.]+% of 1,000 translations match exactly; [\d.]+% of \d+ pronouns are right\.", run.stdout
    )
    for sentence in WINOGRAD:
        assert run.stdout.count(sentence) == 2
    assert len(re.findall(r"^  [12]\.[1-4] it ", run.stdout, flags=re.MULTILINE)) == 2 * 8
    verify(tmp_path / "demo")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_demo_model_translates_its_test_set(tmp_path: Path, seed: int) -> None:
    options = ["demo", "--seed", str(seed), "--out", str(tmp_path / "demo")]
    out = heed(*options).stdout
    rates = re.search(r"([\d.]+)% of 1,000 translations match exactly; ([\d.]+)% of \d+ pronouns are right", out)
    assert rates, out
    assert float(rates[1]) >= 98.0
    assert float(rates[2]) >= 95.0
    assert "L'animal n'a pas traversé la rue parce qu'il était trop fatigué." in out
    assert "L'animal n'a pas traversé la rue parce qu'elle était trop large." in out
    _assert_scores_come_back(tmp_path / "demo")
    _assert_paragraphs_come_back_whole(tmp_path / "demo")
    again = heed(*options)  # a finished demo is shown without training again
    assert again.stdout == out
    assert "resuming after step 900" in again.stderr


def _assert_scores_come_back(demo: Path) -> None:
    """Scoring 1,000 translations gives the log-probabilities that the search reported."""
    sources = [line.split("\t")[0] for line in (demo / "test.tsv").read_text(encoding="utf-8").splitlines()]
    translator = load(demo)
    translations = translator.translate(sources, align=False)
    scores = translator.score(sources, [translation.text for translation in translations])
    assert len(scores) == 1000
    assert [translation.log_prob for translation in translations] == pytest.approx(scores, abs=1e-4)


def _assert_paragraphs_come_back_whole(demo: Path) -> None:
    """500 paragraphs of five sentences: no sentence is lost, and nearly all are translated correctly."""
    pairs = [line.split("\t") for line in (demo / "test.tsv").read_text(encoding="utf-8").splitlines()]
    rng = random.Random(1)
    paragraphs = [rng.sample(pairs, 5) for _ in range(500)]
    translator = load(demo)
    translations = translator([" ".join(pair[0] for pair in paragraph) for paragraph in paragraphs])
    assert sum(1 + len(sentence_starts(text, "fr")) for text in translations) == 2500
    correct = sum(
        pair[1] in text for text, paragraph in zip(translations, paragraphs, strict=True) for pair in paragraph
    )
    assert correct > 2400
