"""`heed quantize`: a model folder with its weights in integers of 8 bits."""

from pathlib import Path
from typing import Annotated

import typer

from heed.cli.places import out_option


def quantize(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    out: Annotated[Path, out_option("The model folder to write.")],
) -> None:
    """Round a model's weights to integers of 8 bits: a quarter of the size, and translating on a CPU is faster."""
    from heed.artifacts.save import write_rounded  # noqa: PLC0415 - torch takes seconds to import

    before, after = write_rounded(model, out)
    typer.echo(
        f"{model} in integers of 8 bits is in {out}: {after / 1e6:.1f} MB instead of {before / 1e6:.1f}", err=True
    )
