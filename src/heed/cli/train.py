"""`heed train`: from raw text to a model folder, with progress to watch, and safe to cut off at any moment."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heed.caches import cache_folder
from heed.cli import texts
from heed.cli.settings import from_file, from_options
from heed.config import DataConfig
from heed.model_presets import model_preset
from heed.text.corpus import Corpus
from heed.training.presets import Nested, check_early, merged, preset_for, training_preset

if TYPE_CHECKING:
    from heed.cli.watch import Watch
    from heed.training.material import Material


def train(
    out: Annotated[Path, typer.Option(help="The run's folder, made if it is not there.")],
    source: texts.Source = [],
    target: texts.Target = [],
    pairs: texts.Pairs = [],
    text: texts.Text = [],
    weight: texts.Weights = [],
    valid_source: texts.ValidSource = [],
    valid_target: texts.ValidTarget = [],
    valid_pairs: texts.ValidPairs = [],
    valid_text: texts.ValidText = [],
    source_key: texts.SourceKey = "source",
    target_key: texts.TargetKey = "target",
    source_language: texts.SourceLanguage = None,
    target_language: texts.TargetLanguage = None,
    task: texts.Task = None,
    preset: texts.Preset = None,
    config: texts.Config = None,
    set_: texts.Set = [],
    init_from: Annotated[Path | None, typer.Option(help="A model folder whose weights to begin with.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run in --out ended.")] = False,
    cache: texts.Cache = None,
) -> None:
    """Train a model on your own text. Under torchrun, several processes train it together."""
    settings = (from_file(config), from_options(set_), texts.named_settings(task, source_language, target_language))
    check_early(merged(*settings))
    if preset is not None:
        training_preset(preset)
    keys = (source_key, target_key)
    learnt = texts.Given(source, target, pairs, text)
    validation = texts.validation_corpora(texts.Given(valid_source, valid_target, valid_pairs, valid_text), keys)

    from heed.cli.watch import Watch  # noqa: PLC0415 - torch takes seconds to import
    from heed.model.folder import read_model_folder  # noqa: PLC0415
    from heed.training.distributed import join  # noqa: PLC0415
    from heed.training.material import Material  # noqa: PLC0415
    from heed.training.setup import set_up  # noqa: PLC0415

    with join() as team, Watch(silent=not team.is_first) as watch:
        if team.is_first:
            training = texts.training_corpora(texts.spooled(out, learnt)[0], keys, weight)
            place = (out, cache or cache_folder())
            material = _material(place, training, validation, (preset, *settings), init_from, watch, resume=resume)
            team.from_first(material.to_bytes())
        else:
            material = Material.from_bytes(team.from_first(b""))
        watch.learn(set_up(out, material, team, None if init_from is None else read_model_folder(init_from)))


def _material(
    place: tuple[Path, Path],
    training: list[Corpus],
    validation: list[Corpus],
    wanted: tuple[str | None, *tuple[Nested, ...]],
    init_from: Path | None,
    watch: "Watch",
    *,
    resume: bool,
) -> "Material":
    """What the run in place[0] needs of its texts; the preset is chosen by how much there is, unless one is wanted."""
    from heed.model.folder import read_model_folder  # noqa: PLC0415
    from heed.training.material import gather_material, language_settings, survey_all  # noqa: PLC0415
    from heed.training.tasks import task_named  # noqa: PLC0415

    out, cache = place
    preset, *settings = wanted
    data = DataConfig.model_validate(merged(*settings)["data"])
    task = task_named(data.task)
    surveyed = survey_all([task.corpus(one, data) for one in training], watch.work)
    name = preset or preset_for(sum(found.pairs for _, found in surveyed))
    shape = {"model": model_preset(name)} if init_from is None else read_model_folder(init_from).settings()
    languages, said = language_settings(training, validation, data) if data.task == "translate" else ({}, "")
    layers = merged({"training": training_preset(name)}, shape, task.defaults, languages, *settings)
    held_out = survey_all([task.corpus(one, data) for one in validation], watch.work)
    watch.note(f"settings: those of the preset {name}, and what you set")
    if said:
        watch.note(said)
    return gather_material(
        out, layers, surveyed, held_out, cache, resume=resume, report=watch.work, init_from=init_from
    )
