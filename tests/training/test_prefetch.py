import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from heed.training.steps import prefetch


def test_everything_comes_in_order() -> None:
    assert list(prefetch(lambda n: n * n, range(20))) == [n * n for n in range(20)]


def test_the_next_one_is_made_while_one_is_in_use() -> None:
    made = threading.Semaphore(0)

    def make(number: int) -> int:
        made.release()
        return number

    with closing(prefetch(make, range(10))) as results:
        assert next(results) == 0
        assert made.acquire(timeout=5)
        assert made.acquire(timeout=5)  # nobody has asked for this one yet


def test_what_goes_wrong_is_raised_when_its_turn_comes() -> None:
    results = prefetch(lambda n: 1 // n, [2, 1, 0, 5])
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_nothing_runs_on_after_the_end() -> None:
    asked = []

    def items() -> Iterator[int]:
        for number in range(1000):
            asked.append(number)
            yield number

    with closing(prefetch(lambda n: n, items())) as results:
        next(results)
    assert len(asked) < 10
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]
