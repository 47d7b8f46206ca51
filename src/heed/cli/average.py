"""`heed average`: the mean of a run's last checkpoints as a model folder."""

from pathlib import Path
from typing import Annotated

import typer

from heed.cli.places import out_option


def average(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    out: Annotated[Path, out_option("The model folder to write.")],
    last: Annotated[int, typer.Option(min=1, help="How many of the last checkpoints to take.")] = 5,
) -> None:
    """Average the weights of a run's last checkpoints."""
    from heed.training.average import average as mean  # noqa: PLC0415 - torch takes seconds to import

    paths = mean(run, last, out)
    typer.echo(f"the mean of {', '.join(path.name for path in paths)} is in {out}", err=True)
