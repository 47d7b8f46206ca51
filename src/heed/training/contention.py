"""How much of the processor time that this process asked for it was given: not all of it where other work runs."""

import time
from pathlib import Path

_TASKS = Path("/proc/self/task")


class ProcessorShare:
    """Counts from the moment it is made."""

    def __init__(self) -> None:
        self._scheduled = _scheduled()
        self._began, self._worked = time.monotonic(), time.thread_time()

    def so_far(self) -> float:
        """1.0 where no thread had to wait for a processor. Where the system does not say, as this thread saw it."""
        ran, waited = (now - before for now, before in zip(_scheduled(), self._scheduled, strict=True))
        if ran > 0:
            return ran / (ran + waited)
        return (time.thread_time() - self._worked) / (time.monotonic() - self._began)


def _scheduled() -> tuple[int, int]:
    """Nanoseconds that all threads of this process have run, and have waited while they could have (Linux).

    Processor time alone does not tell: a thread that waits for one that was pushed aside is busy waiting.
    """
    ran = waited = 0
    try:
        for task in _TASKS.iterdir():
            running, waiting, _ = map(int, (task / "schedstat").read_text().split())
            ran, waited = ran + running, waited + waiting
    except (OSError, ValueError):  # another system, or a thread that has just ended
        return 0, 0
    return ran, max(waited, 0)
