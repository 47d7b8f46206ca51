import os
import random
from pathlib import Path

import numpy as np
import pytest

from heed.text.corpus import Pair
from heed.text.language_identification import LanguageDetector, SideLanguages, trigram_profile

ENGLISH = ["This is the house that they want to see with him.", "The cat sees a bird and the old dog."]
GERMAN = ["Das ist das Haus, das sie mit ihm sehen wollen.", "Die Katze sieht einen Vogel und den alten Hund."]
MULTI30K = Path(os.environ.get("MULTI30K", "multi30k"))  # a folder with train.en, train.de, val.en and val.de


def test_a_profile_holds_the_most_frequent_trigrams_in_order() -> None:
    assert trigram_profile(["abab ab", "12 -- 5"]) == " abab ababab"
    assert trigram_profile([]) == ""
    assert len(trigram_profile(["".join(chr(first + 200) for first in range(2000))])) == 1200


def test_english_and_german_sentences_are_identified() -> None:
    detector = LanguageDetector({"en": trigram_profile(ENGLISH), "de": trigram_profile(GERMAN)})
    for text, language in (("They see the bird", "en"), ("Sie sehen das alte Haus", "de")):
        (best, percent), (_, other_percent) = detector.detect(text)
        assert (best, percent > 90) == (language, True)
        assert percent + other_percent == pytest.approx(100, abs=0.1)
    assert detector.detect("They see the bird", ["de", "zz"]) == [("de", 100.0)]


def test_a_text_without_letters_has_score_0() -> None:
    assert LanguageDetector({"en": trigram_profile(ENGLISH)}).detect("12 + 5") == [("en", 0.0)]
    assert LanguageDetector({}).detect("hello") == []


@pytest.mark.skipif(not MULTI30K.is_dir(), reason=f"{MULTI30K} is not here")
def test_the_language_of_english_and_german_captions_is_identified() -> None:
    def lines(name: str) -> list[str]:
        return (MULTI30K / name).read_text(encoding="utf-8").splitlines()

    detector = LanguageDetector({code: trigram_profile(lines(f"train.{code}")[:1000]) for code in ("en", "de")})
    for words, min_accuracy in ((100, 1.0), (3, 0.99), (1, 0.97)):
        captions = [(code, " ".join(line.split()[:words])) for code in ("en", "de") for line in lines(f"val.{code}")]
        correct = sum(detector.detect(text)[0][0] == code for code, text in captions)
        assert correct / len(captions) >= min_accuracy


@pytest.mark.skipif(not MULTI30K.is_dir(), reason=f"{MULTI30K} is not here")
def test_captions_on_the_wrong_side_are_detected_with_few_false_positives() -> None:
    english, german = ((MULTI30K / f"train.{code}").read_text(encoding="utf-8").splitlines() for code in ("en", "de"))
    pairs = [Pair(*captions, line) for line, captions in enumerate(zip(english, german, strict=True))]
    rng = random.Random(4)
    swapped, copied = np.array([rng.random() < 0.03 for _ in pairs]), np.array([rng.random() < 0.03 for _ in pairs])
    for line in np.flatnonzero(swapped | copied).tolist():
        pairs[line] = Pair(german[line], english[line] if swapped[line] else german[line - 1], line)
    sides = SideLanguages()
    sides.add_counts(pairs)
    sides.fit(pairs[::6])
    assert not sides.same_language
    (source, target), outliers = sides.classify(pairs)
    wrong = np.array([swapped | copied, swapped])
    detected = np.array([source, target])
    assert (detected & wrong).sum() >= 0.999 * wrong.sum()
    assert (detected & ~wrong).sum() <= 3
    assert outliers.any(0).sum() <= 5
