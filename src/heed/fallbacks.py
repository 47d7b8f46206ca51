"""Fast paths that this process does without, and why: each is reported once, and kept for whoever asks later.

Enters: one sentence from whatever fell back. Leaves: a `note:` line on standard error (through the logger `heed`, so a
program that uses heed can send it elsewhere), and `fallbacks()`, for the doctor and the server's health page.
"""

import logging

_LOG = logging.getLogger("heed")
_noted: dict[str, None] = {}  # in the order in which they happened


def note_fallback(message: str, *, quietly: bool = False) -> None:
    """Record that something slower or smaller is used, and say so the first time.

    quietly: record it alone, where nothing is wrong with the machine and nobody can do anything about it.
    """
    if message not in _noted:
        _noted[message] = None
        if not quietly:
            _LOG.warning("note: %s", message)


def fallbacks() -> list[str]:
    """One sentence for each, oldest first; empty where everything runs as it should."""
    return list(_noted)
