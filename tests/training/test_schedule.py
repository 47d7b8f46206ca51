import pytest

from heed.training.optimizer import cosine_rate, noam_rate


def test_the_rate_rises_in_a_line_and_falls_with_the_root() -> None:
    rates = [noam_rate(step, 512, 4000) for step in range(1, 20_001)]
    assert max(rates) == rates[3999] == pytest.approx(512**-0.5 * 4000**-0.5)
    assert rates[1999] == pytest.approx(rates[3999] / 2)
    assert rates[15_999] == pytest.approx(rates[3999] / 2)
    assert noam_rate(7, 512, 4000, factor=2.0) == pytest.approx(2 * rates[6])


def test_the_cosine_rate_rises_in_a_line_and_ends_at_zero() -> None:
    rates = [cosine_rate(step, max_steps=1000, warmup_steps=100, peak=0.5) for step in range(1, 1001)]
    assert rates[49] == pytest.approx(0.25)
    assert max(rates) == rates[99] == pytest.approx(0.5)
    assert rates[549] == pytest.approx(0.25)
    assert rates[999] == pytest.approx(0.0)
