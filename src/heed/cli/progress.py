"""How far a long translation has come: a bar with the time it will still take, on a terminal's standard error."""

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class TranslationProgress:
    """A bar of translated lines; nothing at all where standard error is no terminal, or where lines are seen anyway.

    total: lines in all, if known.
    """

    def __init__(self, total: int | None = None, *, output_seen: bool = False) -> None:
        console = Console(stderr=True)
        self._done = 0.0
        self._bar = Progress(
            TextColumn("translating"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("lines"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal or output_seen,
        )
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> "TranslationProgress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def within(self, lines: int, done: int, pieces: int) -> None:
        """Of the next `lines` lines so many of all their pieces are translated."""
        self._bar.update(self._task, completed=int(self._done + lines * done / pieces))

    def add(self, lines: int) -> None:
        """So many lines are translated."""
        self._done += lines
        self._bar.update(self._task, completed=int(self._done))


def output_is_seen() -> bool:
    """Whether a person watches standard output: then the lines themselves show how far the work has come."""
    return sys.stdout.isatty()
