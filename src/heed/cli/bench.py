"""`heed bench`: how fast heed is on this machine, a question a command."""

import json
import statistics
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from heed.cli.bench_models import AsJson, machine, train, translate
from heed.cli.output import output_console
from heed.errors import DataError
from heed.interop.engine_names import (
    ENGINES,
    EngineName,
    engine_family,
    missing_packages,
    parse_engine_name,
    require_engine,
)
from heed.text.corpus import read_lines

if TYPE_CHECKING:
    from heed.benchmarking.engine_race import EngineTiming

bench = typer.Typer(help="Measure how fast heed is on this machine, with your own model.", no_args_is_help=True)
bench.command()(machine)
bench.command()(train)
bench.command()(translate)


@bench.command()
def engines(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    file: Annotated[str, typer.Argument(help="Text to translate, a sentence a line; - is standard input.")],
    engine: Annotated[
        list[str], typer.Option(help="An engine to compare with heed; none: all that are installed.")
    ] = [],
    sentences: Annotated[int, typer.Option(min=1, help="Lines of the text to take, at most.")] = 200,
    beam: Annotated[int, typer.Option(min=1, help="Hypotheses kept at each step; 1 is greedy.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="How often each engine translates them; medians count.")] = 5,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of each engine; else as many as it takes.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the engines of `heed translate --engine` on your own model, text and machine.

    Each has a process of its own and warms up; then they take turns, round by round.
    """
    from heed.benchmarking.engine_race import race  # noqa: PLC0415 - no other question needs it

    texts = [line for line in islice(read_lines(file), sentences) if line.strip()]
    if not texts:
        raise DataError(f"{file} is empty: there is nothing to translate")
    chosen = _chosen([parse_engine_name(one) for one in engine])
    typer.echo(f"{len(texts):,} sentences, {', '.join(chosen)}: {rounds} rounds …", err=True)
    found = race(model, texts, chosen, beam=beam, rounds=rounds, threads=threads)
    rows = [_row(one, found[0]) for one in found]
    settings = {"sentences": len(texts), "beam": beam, "rounds": rounds}
    if as_json:
        typer.echo(json.dumps({"model": str(model), "file": file, **settings, "engines": rows}, indent=2))
    else:
        output_console().print(_table(rows))


def _chosen(asked: list[EngineName]) -> list[EngineName]:
    """heed, and those asked for; or all that are installed."""
    for one in asked:
        require_engine(one)
    absent = [one for one in ENGINES if missing_packages(one)]
    if not asked:
        for extra in dict.fromkeys(engine_family(one) for one in absent):
            typer.echo(f"without {extra}, which is not installed: pip install 'heed[{extra}]'", err=True)
    return list(dict.fromkeys(("heed", *(asked or (one for one in ENGINES if one not in absent)))))


def _row(one: "EngineTiming", ours: "EngineTiming") -> dict[str, Any]:
    from heed.benchmarking.engine_race import speedup  # noqa: PLC0415

    return {
        "engine": one.engine,
        "threads": one.threads,
        "sentences_per_second": len(one.texts) / statistics.median(one.batch_seconds),
        "times_faster": speedup(one.batch_seconds, ours.batch_seconds),
        "seconds_alone": statistics.median(one.single_seconds),
        "times_faster_alone": speedup(one.single_seconds, ours.single_seconds),
        "same_output": one.agreement(ours),
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column("engine", no_wrap=True)
    for heading in ("sentences/s", "× heed", "one alone, ms", "× heed", "same output"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["engine"],
            f"{row['sentences_per_second']:.1f}",
            f"{row['times_faster']:.2f}",
            f"{1000 * row['seconds_alone']:.1f}",
            f"{row['times_faster_alone']:.2f}",
            f"{100 * row['same_output']:.1f} %",
        )
    return table
