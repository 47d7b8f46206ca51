"""`heed bench machine`, `train` and `translate`: what this machine can do, and how much of it heed uses."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from heed.cli.options import Engine, from_options, open_translator
from heed.cli.output import counted, output_console
from heed.config import RunConfig, model_preset
from heed.errors import ConfigError, DataError
from heed.text.corpus import read_lines
from heed.training.presets import check_settings, merge_settings, training_preset

if TYPE_CHECKING:
    import torch

    from heed.benchmarking.limits import MachineLimits
    from heed.benchmarking.training import TrainingSpeed
    from heed.benchmarking.translating import TokenSequences, TranslationJob, TranslationSpeed
    from heed.inference.translator import Translator


Device = Annotated[Literal["cpu", "cuda"] | None, typer.Option(help="Where; by default on a GPU if there is one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def machine(device: Device = None, as_json: AsJson = False) -> None:
    """Measure what this machine can do at most: matrix products and bytes read from memory, a second.

    No training and no translating goes beyond it, so speeds can be read as shares of it. Takes some seconds.
    """
    where = chosen(device)
    from heed.benchmarking.limits import measure_limits  # noqa: PLC0415 - torch takes seconds to import

    with Console(stderr=True).status("multiplying large matrices, reading memory"):
        found = measure_limits(where)
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2))
    else:
        output_console().print(_limits_table(found))


def chosen(device: Literal["cpu", "cuda"] | None) -> "torch.device":
    """The device that was asked for, or the one that heed would take."""
    import torch  # noqa: PLC0415 - takes seconds to import

    from heed.backends.select import default_device  # noqa: PLC0415

    default = default_device()
    if device == "cuda" and default.type == "cpu":
        raise ConfigError("--device cuda: torch finds no GPU here; leave it out, or say --device cpu")
    return default if device is None else torch.device(device)


def _limits_table(found: "MachineLimits") -> Table:
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
        output_console().print(_training_table(found, where.type))


def _config(preset: str, vocabulary: int, tokens: int | None, options: list[str]) -> RunConfig:
    """All settings, as `heed train` would have them."""
    settings = from_options(options)
    for section in settings:
        if section not in ("model", "training"):
            raise ConfigError(f"--set {section}.…: only model and training can be set here, such as model.norm=pre")
    check_settings(merge_settings(settings))
    start: dict[str, dict[str, Any]] = {"training": training_preset(preset), "model": model_preset(preset)}
    given: dict[str, Any] = {} if tokens is None else {"tokens_per_batch": tokens}
    last = {"model": {"vocab_size": vocabulary}, "training": given}
    return RunConfig.model_validate(merge_settings(start, settings, last))


def _training_table(found: "TrainingSpeed", device: str) -> Table:
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
    from heed.benchmarking.translating import measure_translation  # noqa: PLC0415

    choice = translator.backend.choice
    device = torch.device(choice.device)
    sources = _sources(translator, lines, max(sentences, *batch))
    by_batch = _by_batch(sources, batch, beam, forced=lines is None)
    by_length = _by_length(sources, sorted({min(batch), max(batch)}), min(beam), translator.max_tokens)
    typer.echo(f"{len(by_batch) + len(by_length)} measurements, {counted(rounds, 'round')} …", err=True)
    with Console(stderr=True).status("") as status:
        found = measure_translation(translator, [*by_batch, *by_length], rounds, status.update)
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
    console.print(_translating_table(tables["by_batch"]))
    console.print("by length, as many tokens written as read", _translating_table(tables["by_length"]), sep="\n")
    console.print(f"backend {choice}", highlight=False, markup=False)


def _sources(translator: "Translator", lines: list[str] | None, count: int) -> "TokenSequences":
    """Token ids to translate, at least `count` sequences; longer lines than the model was trained for are truncated."""
    from heed.benchmarking.translating import random_sources, repeat_sources  # noqa: PLC0415 - torch imports slowly

    tokenizer, longest = translator.tokenizers[0], translator.max_tokens
    if lines is None:
        return random_sources(count, min(_LENGTH, longest), tokenizer.vocab_size)
    return repeat_sources([ids[:longest] for ids in tokenizer.encode(lines)], count)


def _by_batch(
    sources: "TokenSequences", batches: Sequence[int], beams: Sequence[int], *, forced: bool
) -> "list[TranslationJob]":
    from heed.benchmarking.translating import TranslationJob  # noqa: PLC0415

    length = len(sources[0]) if forced else None
    return [TranslationJob(sources, batch, beam, length) for batch in batches for beam in beams]


def _by_length(sources: "TokenSequences", batches: Sequence[int], beam: int, longest: int) -> "list[TranslationJob]":
    """The same tokens in sources of other lengths, as many written as read."""
    from heed.benchmarking.translating import TranslationJob, rechunk  # noqa: PLC0415

    lengths = [length for length in _LENGTHS if length <= longest]
    return [
        TranslationJob(rechunk(sources, length, batch), batch, beam, length) for batch in batches for length in lengths
    ]


def _limit(translator: "Translator", device: "torch.device") -> "Callable[[TranslationSpeed], float] | None":
    """What says which share of a CPU's limit a speed is; none on GPUs."""
    from heed.benchmarking.limits import Dtype, matmul_throughput, memory_bandwidth  # noqa: PLC0415

    if device.type != "cpu":
        return None
    arithmetic: Dtype = "int8" if translator.backend.choice.dtype == "int8" else "float32"
    config, each = translator.backend.configs[0], 1 if arithmetic == "int8" else 4
    operations, read = matmul_throughput(arithmetic, device), memory_bandwidth(device)
    return lambda one: one.roofline_seconds_per_sentence(config, operations, read, each) / one.seconds_per_sentence


def _translating_table(rows: list[dict[str, Any]]) -> Table:
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
