"""`heed bench translate`: how fast a model translates on this machine."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from heed.cli.bench_machine import AsJson, memory
from heed.cli.options import Engine, open_translator
from heed.cli.output import counted, output_console
from heed.errors import DataError
from heed.text.corpus import read_lines

if TYPE_CHECKING:
    import torch

    from heed.benchmarking.translating import Ids, Job, Timing
    from heed.inference.translator import Translator

_LENGTH = 31  # of sources made up, and of what is written for them: with the token that ends them, 32
_LENGTHS = (7, 15, 31, 63, 127)  # to see growth by


def translate(
    model: Annotated[Path, typer.Argument(help="A model folder, or one that heed export wrote for an engine.")],
    file: Annotated[
        str | None,
        typer.Argument(help="Text to translate, a sentence a line; - is standard input; none: random words."),
    ] = None,
    engine: Engine = None,
    batch: Annotated[list[int], typer.Option(min=1, help="Sentences at once; may be given again.")] = [1, 8, 32],
    beam: Annotated[list[int], typer.Option(min=1, help="Hypotheses kept at each step; likewise.")] = [1, 4],
    sentences: Annotated[int, typer.Option(min=1, help="Lines of the text to take, at most.")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="How often everything is measured; medians count.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Measure how fast your model translates here: by sentences at once, hypotheses, and length of sentences.

    Without a text, random words of the vocabulary are translated, and as many tokens are written as read.
    """
    lines = None if file is None else [line for line in islice(read_lines(file), sentences) if line.strip()]
    if lines == []:
        raise DataError(f"{file} is empty: there is nothing to translate")
    translator = open_translator(model, [], {}, engine)
    import torch  # noqa: PLC0415 - takes seconds to import

    from heed.backends.machine import device_name  # noqa: PLC0415
    from heed.benchmarking.limits import peak_memory  # noqa: PLC0415 - torch takes seconds to import
    from heed.benchmarking.translating import measure_translating  # noqa: PLC0415

    choice = translator.backend.choice
    device = torch.device(choice.device)
    sources = _sources(translator, lines, max(sentences, *batch))
    by_batch = _by_batch(sources, batch, beam, forced=lines is None)
    by_length = _by_length(sources, sorted({min(batch), max(batch)}), min(beam), translator.max_tokens)
    typer.echo(f"{len(by_batch) + len(by_length)} measurements, {counted(rounds, 'round')} …", err=True)
    with Console(stderr=True).status("") as status:
        found = measure_translating(translator, [*by_batch, *by_length], rounds, status.update)
        most = peak_memory(device)  # before the limit, which takes some of its own
        limit = _limit(translator, device)
    rows = [{**asdict(one), "share": limit and limit(one)} for one in found]
    tables = {"by_batch": rows[: len(by_batch)], "by_length": rows[len(by_batch) :]}
    where = device_name(device)
    if as_json:
        told = {
            "model": str(model),
            "file": file,
            "rounds": rounds,
            "device": where,
            "backend": str(choice),
            "peak_memory": most,
            **tables,
        }
        typer.echo(json.dumps(told, indent=2))
        return
    console = output_console()
    console.print(f"{where}; peak memory: {memory(most, device.type)}")
    console.print(_table(tables["by_batch"]))
    console.print("by length, as many tokens written as read", _table(tables["by_length"]), sep="\n")
    console.print(f"backend {choice}", highlight=False, markup=False)


def _sources(translator: "Translator", lines: list[str] | None, count: int) -> "Ids":
    """Ids to translate, no fewer than `count`; lines longer than the model was trained for are cut off."""
    from heed.benchmarking.translating import random_sources, repeated  # noqa: PLC0415 - torch takes seconds to import

    tokenizer, longest = translator.tokenizers[0], translator.max_tokens
    if lines is None:
        return random_sources(count, min(_LENGTH, longest), tokenizer.vocab_size)
    return repeated([ids[:longest] for ids in tokenizer.encode(lines)], count)


def _by_batch(sources: "Ids", batches: Sequence[int], beams: Sequence[int], *, forced: bool) -> "list[Job]":
    from heed.benchmarking.translating import Job  # noqa: PLC0415

    length = len(sources[0]) if forced else None
    return [Job(sources, batch, beam, length) for batch in batches for beam in beams]


def _by_length(sources: "Ids", batches: Sequence[int], beam: int, longest: int) -> "list[Job]":
    """The same tokens in sources of other lengths, as many written as read."""
    from heed.benchmarking.translating import Job, cut  # noqa: PLC0415

    lengths = [length for length in _LENGTHS if length <= longest]
    return [Job(cut(sources, length, batch), batch, beam, length) for batch in batches for length in lengths]


def _limit(translator: "Translator", device: "torch.device") -> "Callable[[Timing], float] | None":
    """What says which share of a CPU's limit a speed is; none on GPUs."""
    from heed.benchmarking.limits import Arithmetic, bytes_a_second, operations_a_second  # noqa: PLC0415

    if device.type != "cpu":
        return None
    arithmetic: Arithmetic = "int8" if translator.backend.choice.dtype == "int8" else "float32"
    config, each = translator.backend.configs[0], 1 if arithmetic == "int8" else 4
    operations, read = operations_a_second(arithmetic, device), bytes_a_second(device)
    return lambda one: one.least_seconds_per_sentence(config, operations, read, each) / one.seconds_per_sentence


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for heading in ("at once", "beam", "read", "written", "tokens/s", "ms a sentence", "of the limit"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            f"{row['batch']:,}",
            f"{row['beam']}",
            f"{row['source_tokens']:.1f}",
            f"{row['target_tokens']:.1f}",
            f"{row['tokens_per_second']:,.0f}",
            f"{1000 * row['seconds_per_sentence']:,.2f}",
            "" if row["share"] is None else f"{row['share']:.0%}",
        )
    return table
