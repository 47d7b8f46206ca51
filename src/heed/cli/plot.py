"""`heed plot`: how training went, as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heed.cli.options import out_option
from heed.errors import ConfigError, FolderError

if TYPE_CHECKING:
    from heed.plots.curves import Curves


def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Runs' folders; finished or not.")],
    out: Annotated[Path | None, out_option("A .svg, .png or .pdf; else RUN/curves.svg.")] = None,
    by: Annotated[str, typer.Option(help="What to go by: steps, or minutes of training.")] = "steps",
) -> None:
    """Draw loss, BLEU and learning rate of one run, or of several to compare."""
    from heed.plots.curves import draw  # noqa: PLC0415 - numpy takes its time
    from heed.plots.svg import image_format, render  # noqa: PLC0415

    out = out or runs[0] / "curves.svg"
    kind = image_format(out)
    if by not in ("steps", "minutes"):
        raise ConfigError(f"--by {by}: expected steps or minutes")
    curves = read_curves(runs)
    shown = [one for one in curves if not one.is_blank()]
    if not shown:
        raise FolderError(f"{', '.join(map(str, runs))}: no step with a finite loss yet, so there is nothing to draw")
    for one in curves:
        if one.is_blank():
            typer.echo(f"{one.name} is left out: no step with a finite loss yet", err=True)
    picture = draw(shown, "steps" if by == "steps" else "minutes")
    try:
        out.write_bytes(render(picture, kind))
    except OSError as error:
        raise FolderError(f"{out}: {error.strerror}") from None
    typer.echo(f"the curves are in {out}", err=True)


def read_curves(runs: Sequence[Path]) -> "list[Curves]":
    """The curves of some runs, called by their folders' names, or by their paths where two names are the same."""
    from heed.plots.curves import curves_from_journal  # noqa: PLC0415 - numpy takes its time
    from heed.training.step_log import read_journal  # noqa: PLC0415

    names = [run.resolve().name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run) for run in runs]
    for run in runs:
        if not (run / "journal.jsonl").is_file():
            raise FolderError(f"{run} is not a run's folder: it has no journal.jsonl")
    return [
        curves_from_journal(name, read_journal(run / "journal.jsonl")) for name, run in zip(names, runs, strict=True)
    ]
