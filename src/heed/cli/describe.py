"""`heed describe`: prints a preset's settings and counts its parameters, part by part."""

from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from heed.config import ModelConfig
from heed.model.size import parameter_counts
from heed.settings import format_setting


def describe(
    preset: Annotated[str, typer.Option(help="Model size: tiny, small, base or big.")] = "base",
    vocab_size: Annotated[int, typer.Option(help="Vocabulary size, in tokens.")] = 37_000,
) -> None:
    """Show a preset's settings and its parameter count, part by part."""
    config = ModelConfig.preset(preset, vocab_size=vocab_size)
    console = Console()
    console.print(_settings(config))
    console.print(_parameter_table(config))


def _settings(config: ModelConfig) -> Table:
    table = Table("setting", "value", "description", box=box.SIMPLE_HEAD)
    for name, field in ModelConfig.model_fields.items():
        table.add_row(name, format_setting(getattr(config, name)), field.description)
    return table


def _parameter_table(config: ModelConfig) -> Table:
    parts = parameter_counts(config)
    total = sum(part.total for part in parts)
    table = Table("part", "times", "parameters each", "total", box=box.SIMPLE_HEAD, show_footer=True)
    table.columns[0].footer = "parameters"
    table.columns[3].footer = f"{total:,}"
    for column in (1, 3):
        table.columns[column].justify = "right"
    for part in parts:
        table.add_row(part.name, str(part.copies), part.formula, f"{part.total:,}")
    return table
