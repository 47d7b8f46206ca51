"""`heed train`: from raw text to a model folder, with progress to watch, and safe to cut off at any moment."""

import os
from pathlib import Path
from typing import Annotated

import typer

from heed.cli import options
from heed.cli.options import from_options, out_option
from heed.training.corpora import TextFiles
from heed.training.presets import setting_layers

Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with the run in --out, which says all the rest; or start it.")
]


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
    resume: Resume = False,
    cache: options.Cache = None,
) -> None:
    """Train a model on your own text. Under torchrun, several processes train it together."""
    settings = from_options(set_)
    setting_layers(config, settings, task, source_language, target_language, preset)  # mistakes are found at once
    from heed.cli.watch import Watch  # noqa: PLC0415
    from heed.training.train import train as train_model  # noqa: PLC0415 - torch takes seconds to import

    is_first = os.environ.get("RANK", "0") == "0"  # of torchrun's processes, one reads and reports
    files = TextFiles(source, target, pairs, text)
    with Watch(silent=not is_first) as watch:
        (files,) = options.spooled(out, files) if is_first else (files,)
        train_model(
            out=out,
            **vars(files),
            weight=weight,
            valid_source=valid_source,
            valid_target=valid_target,
            valid_pairs=valid_pairs,
            valid_text=valid_text,
            source_key=source_key,
            target_key=target_key,
            columns=columns,
            pairs_format=pairs_format,
            source_language=source_language,
            target_language=target_language,
            task=task,
            preset=preset,
            config=config,
            settings=settings,
            init_from=init_from,
            resume=resume,
            cache=cache,
            listener=watch,
        )
