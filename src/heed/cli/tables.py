"""Tables on standard output: as wide as the terminal, and in a pipe as wide as they are."""

import os
import sys

from rich.console import Console

_UNLIMITED = 100_000


def output_console() -> Console:
    """Where to print. A program that reads what is printed has no width: nothing is cut off or wrapped for it."""
    unlimited = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=_UNLIMITED if unlimited else None)
