"""`heed train`: from raw text to a model folder, with progress to watch, and safe to cut off at any moment."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heed.cli import options
from heed.cli.options import from_file, from_options, out_option
from heed.config import DataConfig, model_preset
from heed.paths import cache_folder
from heed.training.presets import Nested, check_early, merged, preset_for, training_preset

if TYPE_CHECKING:
    from heed.cli.watch import Watch
    from heed.training.material import Material
    from heed.training.resuming import Recorded


def train(
    out: Annotated[Path, out_option("The run's folder, made if it is not there.")],
    source: options.Source = [],
    target: options.Target = [],
    pairs: options.Pairs = [],
    text: options.Text = [],
    weight: options.Weights = [],
    valid_source: options.ValidSource = [],
    valid_target: options.ValidTarget = [],
    valid_pairs: options.ValidPairs = [],
    valid_text: options.ValidText = [],
    source_key: options.SourceKey = "source",
    target_key: options.TargetKey = "target",
    columns: options.Columns = None,
    pairs_format: options.PairsFormat = None,
    source_language: options.SourceLanguage = None,
    target_language: options.TargetLanguage = None,
    task: options.Task = None,
    preset: options.Preset = None,
    config: options.Config = None,
    set_: options.Set = [],
    init_from: Annotated[Path | None, typer.Option(help="A model folder whose weights to begin with.")] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the run in --out, which says all the rest; or start it."),
    ] = False,
    cache: options.Cache = None,
) -> None:
    """Train a model on your own text. Under torchrun, several processes train it together."""
    settings = (from_file(config), from_options(set_), options.named_settings(task, source_language, target_language))
    check_early(merged(*settings))
    if preset is not None:
        training_preset(preset)
    reading = options.Reading(source_key, target_key, columns, pairs_format)
    given = (
        options.Given(source, target, pairs, text),
        options.Given(valid_source, valid_target, valid_pairs, valid_text),
    )

    from heed.training.resuming import Recorded  # noqa: PLC0415 - torch takes seconds to import

    before = Recorded.read(out) if resume and not any(given) else None

    from heed.artifacts.folder import read_model_folder  # noqa: PLC0415
    from heed.cli.watch import Watch  # noqa: PLC0415 - torch takes seconds to import
    from heed.training.distributed import join  # noqa: PLC0415
    from heed.training.material import Material  # noqa: PLC0415
    from heed.training.setup import set_up  # noqa: PLC0415

    with join() as team, Watch(silent=not team.is_first) as watch:
        if before is not None:
            start = replace(before, init_from=init_from or before.init_from, cache=cache or before.cache)
        else:
            held_out = options.validation_corpora(given[1], reading)
            spooled = options.spooled(out, given[0])[0] if team.is_first else given[0]
            training = options.training_corpora(spooled, reading, weight)
            start = Recorded(training, held_out, {}, init_from, cache or cache_folder())
        if team.is_first:
            material = _material(out, start, preset, settings, watch, resume=resume)
            team.from_first(material.to_bytes())
        else:
            material = Material.from_bytes(team.from_first(b""))
        begin_with = None
        if start.init_from is not None and material.checkpoint is None:
            begin_with = read_model_folder(start.init_from)
        watch.learn(set_up(out, material, team, begin_with))


def _material(
    out: Path, start: "Recorded", preset: str | None, settings: tuple[Nested, ...], watch: "Watch", *, resume: bool
) -> "Material":
    """What the run in `out` needs of its texts; what it was started with is then recorded there."""
    from heed.training.material import gather_material, language_settings, survey_all  # noqa: PLC0415
    from heed.training.tasks import task_named  # noqa: PLC0415

    data = DataConfig.model_validate(merged(start.settings, *settings)["data"])
    task = task_named(data.task)
    surveyed = survey_all([task.corpus(one, data) for one in start.training], watch.work)
    codes = language_settings(start.training, start.validation, data) if data.task == "translate" else ({}, "")
    defaults = merged(task.defaults, codes[0])
    layers, note = _layers(out, start, preset, settings, defaults, sum(found.pairs for _, found in surveyed))
    held_out = survey_all([task.corpus(one, data) for one in start.validation], watch.work)
    for said in filter(None, (note, codes[1])):
        watch.note(said)
    material = gather_material(
        out, layers, surveyed, held_out, start.cache, resume=resume, report=watch.work, init_from=start.init_from
    )
    replace(start, settings=layers).write(out)
    return material


def _layers(
    out: Path, start: "Recorded", preset: str | None, settings: tuple[Nested, ...], defaults: Nested, pairs: int
) -> tuple[Nested, str]:
    """All settings in force, and where they come from: what is recorded, or a preset, the corpus's size choosing it."""
    from heed.artifacts.folder import read_model_folder  # noqa: PLC0415

    if start.settings:
        named = [] if preset is None else [{"training": training_preset(preset), "model": model_preset(preset)}]
        return merged(start.settings, *named, *settings), f"texts and settings: as recorded in {out}, and what you set"
    name = preset or preset_for(pairs)
    shape = {"model": model_preset(name)} if start.init_from is None else read_model_folder(start.init_from).settings()
    layers = merged({"training": training_preset(name)}, shape, defaults, *settings)
    return layers, f"settings: those of the preset {name}, and what you set"
