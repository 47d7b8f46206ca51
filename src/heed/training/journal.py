"""What happened in a run, one JSON object a line, for people and programs to read while it goes on.

The JSON is strict: a number that is not finite is written as null, which every reader of JSON understands.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from heed.artifacts.writing import sync, write_safely
from heed.errors import FolderError


class Journal:
    """`journal.jsonl` of a run. Continuing from a step forgets what came after it."""

    def __init__(self, path: Path, after_step: int) -> None:
        self._path = path
        kept = [line for line in read_journal(path) if line["step"] <= after_step]
        with _explaining(path):
            _replace(path, kept)

    def write(self, entry: dict[str, Any]) -> None:
        """One more line."""
        with _explaining(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(_line(entry))

    def sync(self) -> None:
        """Bring all lines to the disk, before a checkpoint that comes after them."""
        with _explaining(self._path):
            sync(self._path)
            sync(self._path.parent)


def read_journal(path: Path) -> list[dict[str, Any]]:
    """All whole lines; a last one that was cut off while being written does not count."""
    if not path.exists():
        return []
    # Bytes, since the cut may go through a letter, and since text has line ends that JSON does not escape (U+2028).
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return [_entry(path, number, line) for number, line in enumerate(whole.splitlines(), start=1)]


def _entry(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line, parse_constant=lambda _: None)  # NaN, as journals once said
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict) or not isinstance(entry.get("step"), int):
        found = line[:40].decode(errors="replace")
        raise FolderError(f"{path}:{number}: expected a JSON object with a step, found {found!r}")
    return entry


def _line(entry: dict[str, Any]) -> str:
    strict = {name: None if _is_nonsense(value) else value for name, value in entry.items()}
    return json.dumps(strict, ensure_ascii=False, allow_nan=False) + "\n"


def _is_nonsense(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FolderError(f"{path} cannot be written: {error.strerror or error}") from None


def _replace(path: Path, entries: list[dict[str, Any]]) -> None:
    building = path.with_suffix(".writing")
    write_safely(building, "".join(_line(entry) for entry in entries).encode())
    building.replace(path)
