"""Turns the text files given to `heed train` or `heed.train` into training and validation corpora."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from heed.errors import DataError
from heed.text.corpus import Corpus

Paths: TypeAlias = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def path_list(paths: Paths) -> list[str]:
    return [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]


@dataclass(frozen=True)
class TextFiles:
    """The paths of text files, by format."""

    source: list[str]  # parallel text: line n of a source file
    target: list[str]  # and line n of its target file are a pair
    pairs: list[str]  # .tsv, .csv or .jsonl
    text: list[str]  # monolingual text

    @classmethod
    def of(cls, source: Paths, target: Paths, pairs: Paths, text: Paths) -> "TextFiles":
        """From one path or several of each format."""
        return cls(path_list(source), path_list(target), path_list(pairs), path_list(text))

    def __bool__(self) -> bool:
        return any((self.source, self.target, self.pairs, self.text))


@dataclass(frozen=True)
class PairFileOptions:
    """How .tsv, .csv and .jsonl files of pairs are read."""

    source_key: str = "source"
    target_key: str = "target"
    columns: str | None = None
    pairs_format: Literal["tsv", "csv", "jsonl"] | None = None

    def corpora(self, pairs: Iterable[str]) -> list[Corpus]:
        """One corpus per file."""
        corpora = [Corpus(pairs=path, **vars(replace(self, columns=None))) for path in pairs]
        has_columns = [corpus.format in ("tsv", "csv") for corpus in corpora]
        if self.columns is not None and corpora and not any(has_columns):
            raise DataError(f"columns = {self.columns!r} is for .tsv and .csv files, found {corpora[0].name}")
        return [
            replace(corpus, columns=self.columns) if is_table else corpus
            for corpus, is_table in zip(corpora, has_columns, strict=True)
        ]


def training_corpora(files: TextFiles, options: PairFileOptions, weight: Iterable[float] = ()) -> list[Corpus]:
    """The corpora to train on, at least one. weight: one for each corpus, in order, or none."""
    corpora = _corpora("training", files, options)
    if not corpora:
        raise DataError("there is no training text: give --source and --target, --pairs, or --text")
    weights = [float(number) for number in weight] or [1.0] * len(corpora)
    if len(weights) != len(corpora):
        raise DataError(f"found {len(weights)} weights for {len(corpora)} corpora: give one for each, or none")
    return [replace(corpus, weight=number) for corpus, number in zip(corpora, weights, strict=True)]


def validation_corpora(files: TextFiles, options: PairFileOptions) -> list[Corpus]:
    """The corpora to validate on, possibly none."""
    return _corpora("validation", files, options)


def _corpora(purpose: str, files: TextFiles, options: PairFileOptions) -> list[Corpus]:
    if len(files.source) != len(files.target):
        raise DataError(
            f"found {len(files.source)} source files and {len(files.target)} target files for {purpose}: expected as "
            "many target files as source files"
        )
    parallel = [Corpus(source, target) for source, target in zip(files.source, files.target, strict=True)]
    return parallel + options.corpora(files.pairs) + [Corpus(text=path) for path in files.text]
