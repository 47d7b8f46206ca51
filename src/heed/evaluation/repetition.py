"""Repetition, the most common way in which decoding degenerates: the same few words again and again."""

import re

# The same 2 to 40 characters four times in a row.
_FOUR_TIMES = re.compile(r"(.{2,40}?)\1{3}", re.DOTALL)


def repeats_itself(text: str, reference: str) -> bool:
    """Whether a translation says the same four times in a row where its reference does not."""
    return _is_repetitive(text) and not _is_repetitive(reference)


def _is_repetitive(text: str) -> bool:
    return _FOUR_TIMES.search(f"{text} ") is not None  # the space completes a repetition of words at the end
