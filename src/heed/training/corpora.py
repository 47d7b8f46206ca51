"""Files that a command or a call names, to corpora for training and for validation. Needs no torch."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from heed.errors import DataError
from heed.text.corpus import Corpus

Paths: TypeAlias = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def path_list(paths: Paths) -> list[str]:
    """One path or several, as a list."""
    return [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]


@dataclass(frozen=True)
class TextFiles:
    """Files of text: parallel ones, ones of pairs, and ones of text alone."""

    source: list[str]
    target: list[str]
    pairs: list[str]
    text: list[str]

    @classmethod
    def of(cls, source: Paths, target: Paths, pairs: Paths, text: Paths) -> "TextFiles":
        """From one path or several each."""
        return cls(path_list(source), path_list(target), path_list(pairs), path_list(text))

    def __bool__(self) -> bool:
        return any((self.source, self.target, self.pairs, self.text))


@dataclass(frozen=True)
class PairFileOptions:
    """How files of pairs are read."""

    source_key: str = "source"
    target_key: str = "target"
    columns: str | None = None
    pairs_format: Literal["tsv", "csv", "jsonl"] | None = None

    def corpora(self, pairs: Iterable[str]) -> list[Corpus]:
        """One corpus per file."""
        found = [Corpus(pairs=path, **vars(replace(self, columns=None))) for path in pairs]
        tables = [corpus.format in ("tsv", "csv") for corpus in found]
        if self.columns is not None and found and not any(tables):
            raise DataError(f"--columns {self.columns} is for .tsv and .csv files, found {found[0].name}")
        return [
            replace(corpus, columns=self.columns) if table else corpus
            for corpus, table in zip(found, tables, strict=True)
        ]


def training_corpora(files: TextFiles, reading: PairFileOptions, weight: Iterable[float] = ()) -> list[Corpus]:
    """The corpora to train on, of which there must be one. weight: one for each, in order, or none."""
    found = _corpora("source", files, reading, [float(one) for one in weight])
    if not found:
        raise DataError("there is nothing to learn from: give --source and --target, or --pairs, or --text")
    return found


def validation_corpora(files: TextFiles, reading: PairFileOptions) -> list[Corpus]:
    """The corpora to validate on, of which there may be none."""
    return _corpora("valid-source", files, reading, [])


def _corpora(name: str, files: TextFiles, reading: PairFileOptions, weight: list[float]) -> list[Corpus]:
    source, target, pairs, text = files.source, files.target, files.pairs, files.text
    if len(source) != len(target):
        raise DataError(f"{len(source)} times --{name} and {len(target)} times its target: they go together")
    count = len(source) + len(pairs) + len(text)
    if weight and len(weight) != count:
        raise DataError(f"{len(weight)} times --weight for {count} corpora: give one for each, or none")
    found = [Corpus(one, other) for one, other in zip(source, target, strict=True)]
    found += reading.corpora(pairs)
    found += [Corpus(text=one) for one in text]
    return [replace(one, weight=heavy) for one, heavy in zip(found, weight or [1.0] * count, strict=True)]
