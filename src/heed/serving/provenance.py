"""What a model was trained on, and sentences to try it with: for people who meet it on the web page.

A model answers anything, and only texts like those it was trained on are answered well. Sentences come from
`examples.txt` in the model's folder, one per line, which `heed demo` writes and anyone can; without it from the samples
that training notes in `journal.jsonl`. Neither changes a translation, so neither is in the manifest; what cannot be
read there is left out.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from heed.untrusted import open_regular, parse_json

EXAMPLES = "examples.txt"
_MOST, _LONGEST = 6, 200  # sentences, and characters of each
_READ = 1 << 18  # bytes: so much of the end of a file


class TrainingText(BaseModel):
    """A text that a model was trained on: its file's name, without the folders."""

    name: str
    pairs: int


class TrainedOn(BaseModel):
    """How a model was trained, as far as its folder says."""

    texts: list[TrainingText]
    steps: int | None = Field(None, description="Steps of the optimiser.")


def trained_on(trained: Mapping[str, Any]) -> TrainedOn | None:
    """From a folder's record; none: it does not say."""
    texts = [
        TrainingText(name=Path(text["name"]).name, pairs=text["pairs"])
        for text in trained.get("texts", {}).get("training", [])
        if isinstance(text.get("name"), str) and isinstance(text.get("pairs"), int)
    ]
    steps = trained.get("step")
    return TrainedOn(texts=texts, steps=steps if isinstance(steps, int) else None) if texts else None


def examples_in(folder: Path) -> list[str]:
    """A few sentences of the kind that the model of this folder was trained on; the newest samples first."""
    written = [line.strip() for line in _last_lines(folder / EXAMPLES)]
    found = written or [source for line in reversed(_last_lines(folder / "journal.jsonl")) if (source := _sample(line))]
    return [text for text in dict.fromkeys(found) if text and len(text) <= _LONGEST][:_MOST]


def _last_lines(path: Path) -> list[str]:
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _READ))
            lines = file.read(_READ).decode("utf-8", "replace").splitlines()
    except (OSError, ValueError):
        return []
    return lines if size <= _READ else lines[1:]


def _sample(line: str) -> str | None:
    try:
        found = parse_json(line)
    except ValueError:
        return None
    sample = found.get("sample") if isinstance(found, dict) else None
    return sample[0] if isinstance(sample, list) and sample and isinstance(sample[0], str) else None
