"""`heed train`: from raw text to a model folder, with progress to watch, and safe to cut off at any moment."""

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heed.cli.settings import from_file, from_options
from heed.config import model_preset
from heed.errors import DataError
from heed.text.corpus import Corpus
from heed.training.presets import check_early, merged, preset_for, training_preset

if TYPE_CHECKING:
    from heed.training.setup import Surveyed

Paths = list[str]


def train(
    out: Annotated[Path, typer.Option(help="The run's folder, made if it is not there.")],
    source: Annotated[Paths, typer.Option(help="Source text, a sentence a line; may be given several times.")] = [],
    target: Annotated[Paths, typer.Option(help="Target text, line by line the source's translation.")] = [],
    pairs: Annotated[Paths, typer.Option(help="A .tsv or .jsonl file of pairs instead, or besides; - is TSV.")] = [],
    weight: Annotated[list[float], typer.Option(help="Of each corpus, in the order above: 2 is seen twice.")] = [],
    valid_source: Annotated[Paths, typer.Option(help="Source text to validate on.")] = [],
    valid_target: Annotated[Paths, typer.Option(help="Target text to validate on.")] = [],
    valid_pairs: Annotated[Paths, typer.Option(help="A .tsv or .jsonl file to validate on.")] = [],
    preset: Annotated[str | None, typer.Option(help="tiny, small, base or big; else by the corpus' size.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings.")] = None,
    set_: Annotated[list[str], typer.Option("--set", help="One setting, such as training.max_steps=2000.")] = [],
    init_from: Annotated[Path | None, typer.Option(help="A model folder whose weights to begin with.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run in --out ended.")] = False,
    cache: Annotated[Path | None, typer.Option(help="Where prepared text is kept.")] = None,
) -> None:
    """Train a model on your own parallel text."""
    settings = (from_file(config), from_options(set_))
    check_early(merged(*settings))
    if preset is not None:
        training_preset(preset)
    source, target, pairs = _spooled(out, source, target, pairs)
    training = _corpora("source", source, target, pairs, weight)
    if not training:
        raise DataError("there is nothing to learn from: give --source and --target, or --pairs")
    validation = _corpora("valid-source", valid_source, valid_target, valid_pairs, [])

    from heed.cli.watch import Watch  # noqa: PLC0415 - torch takes seconds to import
    from heed.model.folder import read_model_folder  # noqa: PLC0415
    from heed.training.setup import set_up, survey_all  # noqa: PLC0415

    with Watch() as watch:
        surveyed: Surveyed = survey_all(training, watch.work)
        pairs_in_all = sum(found.pairs for _, found in surveyed)
        name = preset or preset_for(pairs_in_all)
        begin = None if init_from is None else read_model_folder(init_from)
        shape = {"model": model_preset(name)} if begin is None else begin.settings()
        layers = merged(shape, {"training": training_preset(name)}, *settings)
        ready = set_up(
            out,
            layers,
            surveyed,
            survey_all(validation, watch.work),
            cache or _default_cache(),
            resume=resume,
            report=watch.work,
            init_from=begin,
        )
        watch.learn(ready, name)


def _corpora(name: str, source: Paths, target: Paths, pairs: Paths, weight: list[float]) -> list[Corpus]:
    if len(source) != len(target):
        raise DataError(f"{len(source)} times --{name} and {len(target)} times its target: they go together")
    count = len(source) + len(pairs)
    if weight and len(weight) != count:
        raise DataError(f"{len(weight)} times --weight for {count} corpora: give one for each, or none")
    weights = weight or [1.0] * count
    files = [Corpus(one, other, weight=heavy) for one, other, heavy in zip(source, target, weights, strict=False)]
    return files + [Corpus(pairs=one, weight=heavy) for one, heavy in zip(pairs, weights[len(source) :], strict=True)]


def _spooled(out: Path, source: Paths, target: Paths, pairs: Paths) -> tuple[Paths, Paths, Paths]:
    """Text is read several times and standard input only once: what comes from there is put into a file of the run."""
    if "-" not in (*source, *target, *pairs):
        return source, target, pairs
    if [*source, *target, *pairs].count("-") > 1:
        raise DataError("standard input (-) was asked for more than once, and can be read only once")
    file = out / ("standard-input.tsv" if "-" in pairs else "standard-input.txt")
    out.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
    source, target, pairs = (
        [str(file) if path == "-" else path for path in paths] for paths in (source, target, pairs)
    )
    return source, target, pairs


def _default_cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "heed"
