"""`heed claims`: measures what is said about attention and about what came before it."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from heed.cli.options import out_option
from heed.errors import InputError
from heed.settings import did_you_mean


def claims(
    names: Annotated[list[str], typer.Argument(help="Claims to measure; default: all.")] = [],
    out: Annotated[Path, out_option("Folder to write results, charts and runs to.")] = Path("claims"),
    scale: Annotated[
        Literal["smallest", "small", "full"],
        typer.Option(help="small: minutes on two cores; full: for a GPU; smallest: only tries the code."),
    ] = "small",
    list_: Annotated[bool, typer.Option("--list", help="List the claims and exit.")] = False,
) -> None:
    """Measure claims on attention and its rivals: each a statement, an experiment, numbers and a verdict.

    A claim that is in the folder already is not measured again: remove its .json file to repeat it.
    """
    from heed.claims.experiments import CLAIMS  # noqa: PLC0415 - torch takes seconds to import
    from heed.claims.run import run_claim  # noqa: PLC0415

    for name in names:
        if name not in CLAIMS:
            raise InputError(f"there is no claim {name!r}: {did_you_mean(name, CLAIMS)}")
    chosen = [CLAIMS[name] for name in names or CLAIMS]
    console = Console(stderr=True, highlight=False)
    table = Table("claim", "statement", *(() if list_ else ("verdict", "finding")))
    for claim in chosen:
        if list_:
            table.add_row(claim.name, claim.statement)
            continue
        result = run_claim(claim, scale, out, lambda message: console.print(message, markup=False))
        table.add_row(claim.name, claim.statement, result.verdict, result.finding)
    Console().print(table)
