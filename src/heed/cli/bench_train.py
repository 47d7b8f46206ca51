"""`heed bench train`: training speed on this machine."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from heed.cli.bench_machine import AsJson, Device, chosen, memory, operations
from heed.cli.options import from_options
from heed.cli.output import output_console
from heed.config import RunConfig, model_preset
from heed.errors import ConfigError
from heed.training.presets import check_early, merged, training_preset

if TYPE_CHECKING:
    from heed.benchmarking.training import TrainingSpeed


def train(
    preset: Annotated[str, typer.Option(help="tiny, small, base or big.")] = "tiny",
    vocabulary: Annotated[int, typer.Option(min=16, help="Tokens in the vocabulary.")] = 8000,
    tokens: Annotated[int | None, typer.Option(min=1, help="Target tokens per batch; else the preset's.")] = None,
    device: Device = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="How long to measure, about.")] = 5.0,
    set_: Annotated[
        list[str], typer.Option("--set", help="A setting of model or training, such as model.norm=pre.")
    ] = [],
    as_json: AsJson = False,
) -> None:
    """Measure the steps that `heed train` takes: target tokens/s, memory, and the share of the machine's limit.

    The sentences are random tokens in lengths like those of real ones; nothing is validated or saved.
    """
    config = _config(preset, vocabulary, tokens, set_)
    where = chosen(device)
    from heed.benchmarking.training import measure_training  # noqa: PLC0415 - torch takes seconds to import

    budget = config.training.tokens_per_batch * config.training.accumulate
    typer.echo(
        f"preset {preset}, {vocabulary:,} tokens in the vocabulary, {budget:,} target tokens per step …", err=True
    )
    with Console(stderr=True).status("") as status:
        found = measure_training(config, where, seconds, status.update)
    if as_json:
        settings = {"preset": preset, "vocabulary": vocabulary, "tokens_per_batch": config.training.tokens_per_batch}
        typer.echo(json.dumps({**settings, **asdict(found)}, indent=2))
    else:
        output_console().print(_table(found, where.type))


def _config(preset: str, vocabulary: int, tokens: int | None, options: list[str]) -> RunConfig:
    """All settings, as `heed train` would have them."""
    settings = from_options(options)
    for section in settings:
        if section not in ("model", "training"):
            raise ConfigError(f"--set {section}.…: only model and training can be set here, such as model.norm=pre")
    check_early(merged(settings))
    start: dict[str, dict[str, Any]] = {"training": training_preset(preset), "model": model_preset(preset)}
    given: dict[str, Any] = {} if tokens is None else {"tokens_per_batch": tokens}
    last = {"model": {"vocab_size": vocabulary}, "training": given}
    return RunConfig.model_validate(merged(start, settings, last))


def _table(found: "TrainingSpeed", device: str) -> Table:
    rows = {
        "device": found.device,
        "parameters": f"{found.parameters:,}",
        "target tokens/s": f"{found.tokens_per_second:,.0f}",
        "a step": f"{1000 * found.seconds_per_step:,.1f} ms, {found.tokens_per_step:,.0f} target tokens",
        "peak memory": memory(found.peak_memory, device),
        "matmuls": f"{operations(found.operations_per_second)}, {found.arithmetic}",
        "share of the limit": f"{found.share:.0%} of {operations(found.limit)}",
    }
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        table.add_row(name, value)
    return table
