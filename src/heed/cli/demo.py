"""`heed demo`: watch a small Transformer learn, then look at what it attends to."""

import time
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from heed.model.size import parameters


def demo(
    seed: Annotated[int, typer.Option(help="Another seed, another model.")] = 1,
    steps: Annotated[int, typer.Option(min=1, help="Batches of 128 examples to learn from.")] = 1000,
) -> None:
    """Train a two-layer model to write digits backwards, test it on unseen strings and show its attention."""
    from heed.training import digits  # noqa: PLC0415 - torch takes seconds to import

    console = Console()
    size = sum(part.total for part in parameters(digits.CONFIG))
    console.print(f"A Transformer of {size:,} parameters learns to write digits backwards, from examples alone.")
    started = time.monotonic()
    columns = (
        TextColumn("step {task.completed}/{task.total}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
    )
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        bar = progress.add_task("", total=steps, loss=float("nan"))
        model = digits.learn(seed, steps, report=lambda step, loss: progress.update(bar, completed=step, loss=loss))
    console.print(f"Trained in {time.monotonic() - started:.0f} s.")

    share = digits.exact_share(model, seed)
    console.print(f"Exact on {share:.1%} of 1,000 strings it has never seen.")
    unseen = digits.strings(seed + 1, unseen=True)
    examples = [next(unseen) for _ in range(4)]
    for text, written in zip(examples, digits.reverse(model, examples), strict=True):
        console.print(f"  {text:>7} > {written}")

    text = next(string for string in unseen if len(string) == 7)
    console.print(
        f"\nWhat each written digit of {text} looked at (encoder-decoder attention, last layer, mean of heads):"
    )
    console.print(_attention_map(*digits.cross_attention(model, text)))


def _attention_map(columns: list[str], rows: list[str], weights: list[list[float]]) -> Text:
    """Source tokens across, target tokens down; the darker a cell, the more weight."""
    shades = " ░▒▓█"
    lines = ["     " + "".join(f"{token:<3}" for token in columns)]
    for token, row in zip(rows, weights, strict=True):
        cells = "".join(shades[min(int(weight * len(shades)), len(shades) - 1)] * 2 + " " for weight in row)
        lines.append(f"  {token:<3}{cells}")
    return Text("\n".join(lines))
