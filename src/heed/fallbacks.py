"""Records which fast paths this process fell back from, and why; each is logged once.

Enters: one sentence per fallback. Leaves: a `note:` line on standard error (through the logger `heed`, so that a
program that uses heed can redirect it), and `fallbacks()`, for `heed doctor` and the server's health page.
"""

import logging

_LOG = logging.getLogger("heed")
_noted: dict[str, None] = {}  # in the order in which they happened


def note_fallback(message: str) -> None:
    """Record that a slower or smaller alternative is used, and log it the first time."""
    if message not in _noted:
        _noted[message] = None
        _LOG.warning("note: %s", message)


def fallbacks() -> list[str]:
    """The recorded fallbacks, oldest first; empty if every fast path is in use."""
    return list(_noted)
