"""Reads the training data and example sentences of a model folder, to be shown on the web page and in /models.

A model translates well only texts like its training data. Example sentences come from `examples.txt` in the model's
folder, one per line (`heed demo` writes it); without it from the samples that training logs in `journal.jsonl`. Neither
file affects translation, so neither is in the manifest, and unreadable ones are ignored.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from heed.untrusted import open_regular, parse_json

EXAMPLES = "examples.txt"
_MAX_EXAMPLES, _MAX_CHARACTERS = 6, 200
_TAIL_BYTES = 1 << 18  # only this much of the end of a file is read


class TrainingText(BaseModel):
    """A training file: its name without folders, and its number of pairs."""

    name: str
    pairs: int


class TrainedOn(BaseModel):
    """Training data and steps of a model, as recorded in its folder."""

    texts: list[TrainingText]
    steps: int | None = Field(None, description="Optimiser steps.")


def trained_on(trained: Mapping[str, Any]) -> TrainedOn | None:
    """From the training record of a folder; None: it names no texts."""
    texts = [
        TrainingText(name=Path(text["name"]).name, pairs=text["pairs"])
        for text in trained.get("texts", {}).get("training", [])
        if isinstance(text.get("name"), str) and isinstance(text.get("pairs"), int)
    ]
    steps = trained.get("step")
    return TrainedOn(texts=texts, steps=steps if isinstance(steps, int) else None) if texts else None


def examples_in(folder: Path) -> list[str]:
    """Example sentences for a model folder; those from training samples newest first."""
    written = [line.strip() for line in _last_lines(folder / EXAMPLES)]
    examples = written or [
        source for line in reversed(_last_lines(folder / "journal.jsonl")) if (source := _sample_source(line))
    ]
    return [text for text in dict.fromkeys(examples) if text and len(text) <= _MAX_CHARACTERS][:_MAX_EXAMPLES]


def _last_lines(path: Path) -> list[str]:
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).decode("utf-8", "replace").splitlines()
    except (OSError, ValueError):
        return []
    return lines if size <= _TAIL_BYTES else lines[1:]


def _sample_source(line: str) -> str | None:
    try:
        entry = parse_json(line)
    except ValueError:
        return None
    sample = entry.get("sample") if isinstance(entry, dict) else None
    return sample[0] if isinstance(sample, list) and sample and isinstance(sample[0], str) else None
