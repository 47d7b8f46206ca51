"""What happened in a run, one JSON object a line, for people and programs to read while it goes on."""

import json
import os
from pathlib import Path
from typing import Any


class Journal:
    """`journal.jsonl` of a run. Continuing from a step forgets what came after it."""

    def __init__(self, path: Path, after_step: int) -> None:
        self._path = path
        kept = [line for line in read_journal(path) if line["step"] <= after_step]
        _replace(path, kept)

    def write(self, entry: dict[str, Any]) -> None:
        """One more line."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")


def read_journal(path: Path) -> list[dict[str, Any]]:
    """All whole lines; a last one that was cut off while being written does not count."""
    if not path.exists():
        return []
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def _replace(path: Path, entries: list[dict[str, Any]]) -> None:
    building = path.with_suffix(".writing")
    with building.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
        file.flush()
        os.fsync(file.fileno())
    building.replace(path)
