"""`heed distil`: trains a student on the text of its teachers and on translations of it."""

from pathlib import Path
from typing import Annotated

import typer

from heed.cli import options
from heed.cli.options import from_options, out_option
from heed.cli.train import ResumeOption, TrainingProgress
from heed.training.presets import setting_layers


def distil(
    teachers: Annotated[
        list[Path], typer.Argument(help="Run folders of heed train; several are an ensemble and share a vocabulary.")
    ],
    out: Annotated[Path, out_option("Folder to write the student's run to; created if it does not exist.")],
    reverse: Annotated[
        list[Path],
        typer.Option(
            help="Model folder of the opposite direction, whose translations of the targets are further sources; may "
            "be given several times."
        ),
    ] = [],
    preset: Annotated[
        str | None,
        typer.Option(
            help="Model size and training settings: tiny, small, base or big; default: those of the first teacher."
        ),
    ] = None,
    config: options.ConfigOption = None,
    set_: options.SetOption = [],
    resume: ResumeOption = False,
    cache: options.CacheOption = None,
) -> None:
    """Train a student on the text of its teachers and on translations of it (knowledge distillation).

    The teachers translate the source text they were trained on; the student is trained on the original pairs and on
    these. With --reverse, models of the opposite direction also translate the target text. Text and settings are those
    of the first teacher; --preset replaces its model and training settings.
    """
    settings = from_options(set_)
    setting_layers(config, settings, None, None, None, preset)  # reports mistakes before torch loads
    from heed.training.distillation import distil as distil_model  # noqa: PLC0415 - torch takes seconds to import

    with TrainingProgress() as progress:
        distil_model(
            *teachers,
            out=out,
            reverse=reverse,
            preset=preset,
            config=config,
            settings=settings,
            resume=resume,
            cache=cache,
            listener=progress,
        )
