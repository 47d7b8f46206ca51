"""`heed plot`: draws the training curves of runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heed.cli.options import out_option
from heed.errors import ConfigError, FolderError

if TYPE_CHECKING:
    from heed.plots.curves import Curves


def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of training runs, finished or not.")],
    out: Annotated[Path | None, out_option("A .svg, .png or .pdf file; default: curves.svg in the first RUN.")] = None,
    by: Annotated[str, typer.Option(help="The x axis: steps or minutes.")] = "steps",
) -> None:
    """Plot loss, BLEU and learning rate of one or several training runs."""
    from heed.plots.curves import draw  # noqa: PLC0415 - numpy takes its time
    from heed.plots.svg import image_format, render  # noqa: PLC0415

    out = out or runs[0] / "curves.svg"
    kind = image_format(out)
    if by not in ("steps", "minutes"):
        raise ConfigError(f"--by {by}: expected steps or minutes")
    curves = read_curves(runs)
    drawable = [run for run in curves if not run.is_blank()]
    if not drawable:
        raise FolderError(f"{', '.join(map(str, runs))}: nothing to plot, no step with a finite loss yet")
    for run in curves:
        if run.is_blank():
            typer.echo(f"{run.name} is left out: no step with a finite loss yet", err=True)
    picture = draw(drawable, "steps" if by == "steps" else "minutes")
    try:
        out.write_bytes(render(picture, kind))
    except OSError as error:
        raise FolderError(f"{out}: {error.strerror}") from None
    typer.echo(f"curves written to {out}", err=True)


def read_curves(runs: Sequence[Path]) -> "list[Curves]":
    """The curves of runs, named by their folders, or by their paths if two folders have the same name."""
    from heed.plots.curves import curves_from_journal  # noqa: PLC0415 - numpy takes its time
    from heed.training.step_log import read_journal  # noqa: PLC0415

    names = [run.resolve().name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run) for run in runs]
    for run in runs:
        if not (run / "journal.jsonl").is_file():
            raise FolderError(f"{run} is not the folder of a training run: it has no journal.jsonl")
    return [
        curves_from_journal(name, read_journal(run / "journal.jsonl")) for name, run in zip(names, runs, strict=True)
    ]
