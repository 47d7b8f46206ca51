"""`heed bench machine`: what this machine can do at most."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from heed.cli.output import output_console
from heed.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from heed.benchmarking.limits import Limits

Device = Annotated[Literal["cpu", "cuda"] | None, typer.Option(help="Where; by default on a GPU if there is one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def machine(device: Device = None, as_json: AsJson = False) -> None:
    """Measure what this machine can do at most: matrix products and bytes read from memory, a second.

    No training and no translating goes beyond it, so speeds can be read as shares of it. Takes some seconds.
    """
    where = chosen(device)
    from heed.benchmarking.limits import limits  # noqa: PLC0415 - torch takes seconds to import

    with Console(stderr=True).status("multiplying large matrices, reading memory"):
        found = limits(where)
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2))
    else:
        output_console().print(_table(found))


def chosen(device: Literal["cpu", "cuda"] | None) -> "torch.device":
    """The device that was asked for, or the one that heed would take."""
    import torch  # noqa: PLC0415 - takes seconds to import

    from heed.backends.select import default_device  # noqa: PLC0415

    default = default_device()
    if device == "cuda" and default.type == "cpu":
        raise ConfigError("--device cuda: torch finds no GPU here; leave it out, or say --device cpu")
    return default if device is None else torch.device(device)


def _table(found: "Limits") -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column(found.device, no_wrap=True)
    table.add_column("at most", justify="right")
    for arithmetic, speed in found.operations.items():
        table.add_row(f"matrix products, {arithmetic}", operations(speed))
    for arithmetic, reason in found.without.items():
        table.add_row(f"matrix products, {arithmetic}", reason)
    table.add_row("reading memory", f"{found.bytes_read / 1e9:,.1f} GB/s")
    return table


def operations(speed: float) -> str:
    """Operations a second, for people."""
    return f"{speed / 1e12:,.1f} TFLOP/s" if speed >= 1e12 else f"{speed / 1e9:,.1f} GFLOP/s"


def memory(taken: int | None, device: str) -> str:
    """The most that was taken, for people."""
    if taken is None:
        return "unknown"
    return f"{taken / 2**30:.2f} GiB{', the whole process' if device == 'cpu' else ''}"
