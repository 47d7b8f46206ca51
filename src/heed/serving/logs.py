"""What a server says while it runs: its own defects, and nothing that anyone has sent.

Libraries log what they stumble over, and that may be a client's text: theirs is dropped. Ours goes through a bounded
queue to standard error, in a thread of its own: if nobody reads that, lines are lost, and not the server's time.
"""

import logging
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

NAME = "heed.serving"
_MOST = 100  # lines that wait to be written
_STANDARD_ERROR = 2


class _Losing(logging.Handler):
    """Loses what finds no room."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        self._waiting: queue.Queue[str | None] = queue.Queue(_MOST)
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Have a line written, if there is room."""
        with suppress(queue.Full):
            self._waiting.put_nowait(f"{self.format(record)}\n")

    def finish(self) -> None:
        """Write what waits, if someone reads it."""
        with suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._thread.join(1.0)

    def _write(self) -> None:
        while (line := self._waiting.get()) is not None:
            with suppress(OSError):  # whoever read it has gone, or there is no room: that may change
                os.write(_STANDARD_ERROR, line.encode("utf-8", "backslashreplace"))


@contextmanager
def only_our_own() -> Iterator[None]:
    """Log our defects, and nothing else, until the block ends."""
    own, root, losing, nothing = logging.getLogger(NAME), logging.getLogger(), _Losing(), logging.NullHandler()
    before = own.propagate
    root.addHandler(nothing)  # without any, Python would write warnings itself
    own.addHandler(losing)
    own.propagate = False
    try:
        yield
    finally:
        own.removeHandler(losing)
        root.removeHandler(nothing)
        own.propagate = before
        losing.finish()
