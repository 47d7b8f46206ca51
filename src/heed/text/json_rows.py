"""A line of JSON to the texts it holds. `where` is the file and line that messages name."""

import json
from collections.abc import Iterator
from typing import Any

from heed.errors import DataError


def parse_object(text: str, where: str) -> dict[str, Any]:
    """The JSON object that a line is."""
    if not text.strip():
        raise DataError(f"{where}: blank line, expected a JSON object; remove the line")
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not valid JSON at column {error.colno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits; thousands of brackets
        raise DataError(f"{where}: JSON that cannot be read: {error}") from None
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected a JSON object, found {type(row).__name__}")
    return row


def take_text(row: dict[str, Any], key: str, where: str, *, is_label: bool = False) -> str:
    """The text that a JSON object has under a key, ``translation.en`` also inside another object.

    is_label: an integer or a truth value will do, as JSON writes it.
    """
    value: Any = row
    for part in [key] if key in row else key.split("."):
        if not isinstance(value, dict) or part not in value:
            found = ", ".join(repr(name) for name in _keys(row)) or "none"
            raise DataError(
                f"{where}: no key {key!r}, the keys are {found}: say which with --source-key and --target-key"
            )
        value = value[part]
    if is_label and isinstance(value, int):
        return json.dumps(value)
    if not isinstance(value, str):
        wanted = "a string or an integer" if is_label else "a string"
        raise DataError(f"{where}: the value of {key!r} must be {wanted}, found {type(value).__name__}")
    text = value
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: the value of {key!r} has the unpaired surrogate {text[error.start]!r} "
            f"at character {error.start + 1}, which is not valid text"
        ) from None
    if "\0" in text:
        raise DataError(f"{where}: the value of {key!r} has a NUL at character {text.index(chr(0)) + 1}")
    return text


def _keys(row: dict[str, Any]) -> Iterator[str]:
    """All keys of an object; those inside another object with a dot."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from (f"{name}.{inner}" for inner in value)
        else:
            yield name
