"""`heed claims`: measures what is said about attention and about what came before it."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from heed.cli.options import out_option
from heed.errors import InputError, TrainingError
from heed.settings import did_you_mean

CORPUS_OPTIONS = "--source, --target, --valid-source and --valid-target"


def claims(
    names: Annotated[list[str], typer.Argument(help="Claims to measure; default: all.")] = [],
    out: Annotated[Path, out_option("Folder to write results, charts and runs to.")] = Path("claims"),
    scale: Annotated[
        Literal["smallest", "small", "full"],
        typer.Option(help="small: minutes on two cores; full: for a GPU; smallest: only tries the code."),
    ] = "small",
    source: Annotated[
        Path | None, typer.Option(help="Source text to train on, for the claim natural-text, which needs all four.")
    ] = None,
    target: Annotated[Path | None, typer.Option(help="Its translations, line by line.")] = None,
    valid_source: Annotated[Path | None, typer.Option(help="Source text of the validation set.")] = None,
    valid_target: Annotated[Path | None, typer.Option(help="Target text of the validation set.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Models to train at the same time; none: one per core, on a GPU up to 15.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the claims and exit.")] = False,
) -> None:
    """Measure claims on attention and its rivals: each a statement, an experiment, numbers and a verdict.

    A claim that is in the folder already is not measured again: remove its .json file to repeat it. Claims on natural
    text are left out unless a corpus is given.
    """
    from heed.claims.experiments import CLAIMS  # noqa: PLC0415 - torch takes seconds to import
    from heed.claims.parallel_corpus import ParallelCorpus  # noqa: PLC0415
    from heed.claims.run import run_claims  # noqa: PLC0415

    for name in names:
        if name not in CLAIMS:
            raise InputError(f"there is no claim {name!r}: {did_you_mean(name, CLAIMS)}")
    chosen = [CLAIMS[name] for name in names or CLAIMS]
    if list_:
        table = Table("claim", "statement")
        for claim in chosen:
            table.add_row(claim.name, claim.statement)
        Console().print(table)
        return
    corpus = ParallelCorpus.of(source, target, valid_source, valid_target)
    if corpus is None and (needy := [claim.name for claim in chosen if claim.needs_corpus and claim.name in names]):
        raise InputError(f"{needy[0]} needs a parallel corpus: give {CORPUS_OPTIONS}")
    console = Console(stderr=True, highlight=False)
    results, failed = run_claims(
        chosen, scale, out, lambda message: console.print(message, markup=False), corpus=corpus, jobs=jobs
    )
    table = Table("claim", "statement", "verdict", "finding")
    for result in results:
        table.add_row(result.claim, CLAIMS[result.claim].statement, result.verdict, result.finding)
    Console().print(table)
    if failed:
        raise TrainingError(f"not measured, for the reasons above: {', '.join(failed)}")
