"""Translations that repeat themselves are recognised, other repetitions are not."""

import pytest

from heed.evaluation.repetition import repeats_itself


@pytest.mark.parametrize(
    "text",
    [
        'a man . " " " " " "',
        "he reads to the class to the class to the class to the class .",
        "the sketetetetetch is nice",
        "他读读书读书读书读书。",
    ],
)
def test_the_same_four_times_in_a_row_is_a_repetition(text: str) -> None:
    assert repeats_itself(text, "a man reads .")


@pytest.mark.parametrize("text", ["", "a man reads .", "no no no", "a very, very big, very old dog", "3000"])
def test_other_text_is_none(text: str) -> None:
    assert not repeats_itself(text, "a man reads .")


def test_what_the_reference_repeats_a_translation_may_repeat() -> None:
    assert not repeats_itself("WALK WALK WALK WALK WALK", "WALK WALK WALK WALK")
