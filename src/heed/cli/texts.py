"""The text that a command is to work on, as its options name it."""

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from heed.errors import DataError
from heed.text.corpus import Corpus

Paths = list[str]
Source = Annotated[Paths, typer.Option(help="Source text, a sentence a line; may be given several times.")]
Target = Annotated[Paths, typer.Option(help="Target text, line by line the source's translation.")]
Pairs = Annotated[Paths, typer.Option(help="A .tsv or .jsonl file of pairs instead, or besides; - is TSV.")]
Weights = Annotated[list[float], typer.Option(help="Of each corpus, in the order above: 2 is seen twice.")]
ValidSource = Annotated[Paths, typer.Option(help="Source text to validate on.")]
ValidTarget = Annotated[Paths, typer.Option(help="Target text to validate on.")]
ValidPairs = Annotated[Paths, typer.Option(help="A .tsv or .jsonl file to validate on.")]
SourceKey = Annotated[str, typer.Option(help="Where a .jsonl object has its source.")]
TargetKey = Annotated[str, typer.Option(help="Where a .jsonl object has its target.")]
Config = Annotated[Path | None, typer.Option(help="A TOML file of settings.")]
Set = Annotated[list[str], typer.Option("--set", help="One setting, such as training.max_steps=2000.")]
Preset = Annotated[str | None, typer.Option(help="tiny, small, base or big; else by the corpus' size.")]
Cache = Annotated[Path | None, typer.Option(help="Where prepared text is kept.")]


def training_corpora(
    source: Paths, target: Paths, pairs: Paths, weight: list[float], keys: tuple[str, str]
) -> list[Corpus]:
    """The corpora to learn from; there must be one."""
    found = _corpora("source", source, target, pairs, weight, keys)
    if not found:
        raise DataError("there is nothing to learn from: give --source and --target, or --pairs")
    return found


def validation_corpora(source: Paths, target: Paths, pairs: Paths, keys: tuple[str, str]) -> list[Corpus]:
    """The corpora to validate on; there may be none."""
    return _corpora("valid-source", source, target, pairs, [], keys)


def _corpora(
    name: str, source: Paths, target: Paths, pairs: Paths, weight: list[float], keys: tuple[str, str]
) -> list[Corpus]:
    if len(source) != len(target):
        raise DataError(f"{len(source)} times --{name} and {len(target)} times its target: they go together")
    count = len(source) + len(pairs)
    if weight and len(weight) != count:
        raise DataError(f"{len(weight)} times --weight for {count} corpora: give one for each, or none")
    weights = weight or [1.0] * count
    files = [Corpus(one, other, weight=heavy) for one, other, heavy in zip(source, target, weights, strict=False)]
    source_key, target_key = keys
    return files + [
        Corpus(pairs=one, source_key=source_key, target_key=target_key, weight=heavy)
        for one, heavy in zip(pairs, weights[len(source) :], strict=True)
    ]


def spooled(folder: Path, source: Paths, target: Paths, pairs: Paths) -> tuple[Paths, Paths, Paths]:
    """Text is read several times and standard input only once: what comes from there is put into a file."""
    if "-" not in (*source, *target, *pairs):
        return source, target, pairs
    if [*source, *target, *pairs].count("-") > 1:
        raise DataError("standard input (-) was asked for more than once, and can be read only once")
    file = folder / ("standard-input.tsv" if "-" in pairs else "standard-input.txt")
    folder.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
    source, target, pairs = (
        [str(file) if path == "-" else path for path in paths] for paths in (source, target, pairs)
    )
    return source, target, pairs


def default_cache() -> Path:
    """Where prepared text is kept unless told otherwise."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "heed"
