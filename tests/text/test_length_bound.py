import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.text.length_bound import LengthBound, fit_length_bound

PAIRS = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 3000)), min_size=1, max_size=40)


def fit(pairs: list[tuple[int, int]]) -> LengthBound:
    sources, targets = np.array(pairs).T
    return fit_length_bound(sources, targets)


def limit(bound: LengthBound, source: int) -> float:
    return bound.ratio * source + bound.extra


@given(PAIRS)
def test_every_training_target_is_within_the_bound_with_a_fifth_to_spare(pairs: list[tuple[int, int]]) -> None:
    bound = fit(pairs)
    assert all(1.2 * target <= limit(bound, source) + 1e-6 for source, target in pairs)
    assert bound.ratio >= 1
    assert bound.extra >= 50


def test_translations_keep_the_bound_of_the_paper() -> None:
    pairs = [(length, length + extra) for length in range(1, 40) for extra in range(-3, 6) if length + extra > 0]
    assert fit(pairs) == LengthBound(1.0, 50)


def test_targets_many_times_as_long_as_their_sources_raise_the_ratio() -> None:
    bound = fit([(length, 20 * length) for length in range(1, 10)])
    assert bound == LengthBound(24.0, 50)
    assert str(bound) == "24 × source tokens + 50"


def test_one_long_target_of_a_short_source_does_not_raise_the_ratio() -> None:
    bound = fit([(length, length) for length in range(5, 40)] * 100 + [(1, 400)])
    assert bound.ratio == 1
    assert bound.extra == pytest.approx(480, abs=1)


def test_sources_of_one_length_have_a_bound() -> None:
    assert limit(fit([(4, 200), (4, 100)]), 4) == pytest.approx(240, abs=1)
