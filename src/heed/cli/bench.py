"""`heed bench`: registers the benchmark commands; `heed bench engines` compares inference engines."""

import json
import statistics
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from heed.cli.bench_models import JsonOption, machine, train, translate
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

bench = typer.Typer(help="Benchmark training, translation and this machine.", no_args_is_help=True)
bench.command()(machine)
bench.command()(train)
bench.command()(translate)


@bench.command()
def engines(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    file: Annotated[str, typer.Argument(help="Text to translate, one sentence per line; - is standard input.")],
    engine: Annotated[
        list[str],
        typer.Option(
            help="Engine to compare with heed, such as ctranslate2; may be given several times; default: all installed."
        ),
    ] = [],
    sentences: Annotated[int, typer.Option(min=1, help="Maximum number of lines to translate.")] = 200,
    beam: Annotated[int, typer.Option(min=1, help="Beam size; 1: greedy search.")] = 4,
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds in which the engines take turns; the median is reported.")
    ] = 5,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads per engine; default: the engine's own.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the speed of the engines of `heed translate --engine` on your model and text.

    Each engine runs in its own process and is warmed up; then the engines take turns, round by round.
    """
    from heed.benchmarking.engine_race import race  # noqa: PLC0415 - only this command needs it

    texts = [line for line in islice(read_lines(file), sentences) if line.strip()]
    if not texts:
        raise DataError(f"{file} is empty: expected text to translate")
    chosen = _chosen_engines([parse_engine_name(name) for name in engine])
    typer.echo(f"{len(texts):,} sentences, {', '.join(chosen)}: {rounds} rounds …", err=True)
    timings = race(model, texts, chosen, beam=beam, rounds=rounds, threads=threads)
    rows = [_row(timing, timings[0]) for timing in timings]
    settings = {"sentences": len(texts), "beam": beam, "rounds": rounds}
    if as_json:
        typer.echo(json.dumps({"model": str(model), "file": file, **settings, "engines": rows}, indent=2))
    else:
        output_console().print(_table(rows))


def _chosen_engines(requested: list[EngineName]) -> list[EngineName]:
    """heed and the requested engines; by default all that are installed."""
    for name in requested:
        require_engine(name)
    absent = [name for name in ENGINES if missing_packages(name)]
    if not requested:
        for extra in dict.fromkeys(engine_family(name) for name in absent):
            typer.echo(f"skipping {extra}, which is not installed: pip install 'heed[{extra}]'", err=True)
    return list(dict.fromkeys(("heed", *(requested or (name for name in ENGINES if name not in absent)))))


def _row(timing: "EngineTiming", baseline: "EngineTiming") -> dict[str, Any]:
    from heed.benchmarking.engine_race import speedup  # noqa: PLC0415

    return {
        "engine": timing.engine,
        "threads": timing.threads,
        "sentences_per_second": len(timing.texts) / statistics.median(timing.batch_seconds),
        "times_faster": speedup(timing.batch_seconds, baseline.batch_seconds),
        "seconds_alone": statistics.median(timing.single_seconds),
        "times_faster_alone": speedup(timing.single_seconds, baseline.single_seconds),
        "same_output": timing.agreement(baseline),
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column("engine", no_wrap=True)
    for heading in ("sentences/s", "× heed", "batch 1, ms", "× heed", "same output"):
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
