"""Work done before it is asked for, by a thread beside the one that asks."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")

_AHEAD = 3  # enough to cover one that takes long, little enough to fit into memory


def ahead(make: Callable[[Item], Made], items: Iterable[Item]) -> Generator[Made]:
    """What `make` makes of each item, in order; while one is in use, the next ones are being made.

    What goes wrong in the other thread is raised here, when its turn comes.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="ahead")
    waiting: deque[Future[Made]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(make, item))
            if len(waiting) > _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
