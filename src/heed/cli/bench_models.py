"""`heed bench machine`, `train` and `translate`: peak GEMM and memory speed, and the share of it that heed reaches."""

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

from heed.cli.options import EngineOption, from_options, open_translator
from heed.cli.output import counted, output_console
from heed.config import RunConfig
from heed.errors import ConfigError, DataError
from heed.model_presets import model_preset
from heed.text.corpus import read_lines
from heed.training.presets import check_settings, merge_settings, training_preset

if TYPE_CHECKING:
    import torch

    from heed.benchmarking.limits import MachineLimits
    from heed.benchmarking.training import TrainingSpeed
    from heed.benchmarking.translating import TokenSequences, TranslationJob, TranslationSpeed
    from heed.inference.translator import Translator

DeviceOption = Annotated[
    Literal["cpu", "cuda"] | None, typer.Option(help="Device to measure; default: the GPU if there is one.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def machine(device: DeviceOption = None, as_json: JsonOption = False) -> None:
    """Measure this machine's peak speed: GEMM FLOP/s and memory bandwidth.

    The other benchmarks report their speed as a share of it. Takes a few seconds.
    """
    chosen = chosen_device(device)
    from heed.benchmarking.limits import measure_limits  # noqa: PLC0415 - torch takes seconds to import

    with Console(stderr=True).status("multiplying large matrices, reading memory"):
        peak = measure_limits(chosen)
    if as_json:
        typer.echo(json.dumps(asdict(peak), indent=2))
    else:
        output_console().print(_limits_table(peak))


def chosen_device(device: Literal["cpu", "cuda"] | None) -> "torch.device":
    """The requested device, or heed's default."""
    import torch  # noqa: PLC0415 - takes seconds to import

    from heed.backends.select import default_device  # noqa: PLC0415

    default = default_device()
    if device == "cuda" and default.type == "cpu":
        raise ConfigError("--device cuda: torch finds no GPU; expected --device cpu, or no --device")
    return default if device is None else torch.device(device)


def _limits_table(peak: "MachineLimits") -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column(peak.device, no_wrap=True)
    table.add_column("peak", justify="right")
    for arithmetic, speed in peak.operations.items():
        table.add_row(f"GEMM, {arithmetic}", _flops(speed))
    for arithmetic, reason in peak.without.items():
        table.add_row(f"GEMM, {arithmetic}", reason)
    table.add_row("memory bandwidth", f"{peak.bytes_read / 1e9:,.1f} GB/s")
    return table


def _flops(speed: float) -> str:
    return f"{speed / 1e12:,.1f} TFLOP/s" if speed >= 1e12 else f"{speed / 1e9:,.1f} GFLOP/s"


def _memory(size: int | None, device: str) -> str:
    if size is None:
        return "unknown"
    return f"{size / 2**30:.2f} GiB{', the whole process' if device == 'cpu' else ''}"


def train(
    preset: Annotated[str, typer.Option(help="Model size: tiny, small, base or big.")] = "tiny",
    vocabulary: Annotated[int, typer.Option(min=16, help="Vocabulary size, in tokens.")] = 8000,
    tokens: Annotated[int | None, typer.Option(min=1, help="Target tokens per batch; default: the preset's.")] = None,
    device: DeviceOption = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="Approximate duration of the measurement, in seconds.")] = 5.0,
    set_: Annotated[list[str], typer.Option("--set", help="A model or training setting, such as model.norm=pre.")] = [],
    as_json: JsonOption = False,
) -> None:
    """Measure training throughput: target tokens/s, memory, and the share of the machine's peak.

    The data are random tokens with realistic sentence lengths; nothing is validated or saved.
    """
    config = _config(preset, vocabulary, tokens, set_)
    chosen = chosen_device(device)
    from heed.benchmarking.training import measure_training  # noqa: PLC0415 - torch takes seconds to import

    budget = config.training.tokens_per_batch * config.training.accumulate
    typer.echo(f"preset {preset}, vocabulary of {vocabulary:,} tokens, {budget:,} target tokens per step …", err=True)
    with Console(stderr=True).status("") as status:
        speed = measure_training(config, chosen, seconds, status.update)
    if as_json:
        settings = {"preset": preset, "vocabulary": vocabulary, "tokens_per_batch": config.training.tokens_per_batch}
        typer.echo(json.dumps({**settings, **asdict(speed)}, indent=2))
    else:
        output_console().print(_training_table(speed, chosen.type))


def _config(preset: str, vocabulary: int, tokens: int | None, options: list[str]) -> RunConfig:
    """The settings that `heed train` would have."""
    settings = from_options(options)
    for section in settings:
        if section not in ("model", "training"):
            raise ConfigError(
                f"--set {section}.…: only model and training settings are allowed here, such as model.norm=pre"
            )
    check_settings(merge_settings(settings))
    start: dict[str, dict[str, Any]] = {"training": training_preset(preset), "model": model_preset(preset)}
    batch: dict[str, Any] = {} if tokens is None else {"tokens_per_batch": tokens}
    last = {"model": {"vocab_size": vocabulary}, "training": batch}
    return RunConfig.model_validate(merge_settings(start, settings, last))


def _training_table(speed: "TrainingSpeed", device: str) -> Table:
    rows = {
        "device": speed.device,
        "parameters": f"{speed.parameters:,}",
        "target tokens/s": f"{speed.tokens_per_second:,.0f}",
        "time per step": f"{1000 * speed.seconds_per_step:,.1f} ms, {speed.tokens_per_step:,.0f} target tokens",
        "peak memory": _memory(speed.peak_memory, device),
        "matmuls": f"{_flops(speed.operations_per_second)}, {speed.arithmetic}",
        "share of peak": f"{speed.share:.0%} of {_flops(speed.limit)}",
    }
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        table.add_row(name, value)
    return table


_LENGTH = 31  # of random sources and their translations, without the end-of-sentence token
_LENGTHS = (7, 15, 31, 63, 127)  # of the table by length


def translate(
    model: Annotated[Path, typer.Argument(help="A model folder, or one that heed export wrote for an engine.")],
    file: Annotated[
        str | None,
        typer.Argument(help="Text to translate, one sentence per line; - is standard input; default: random tokens."),
    ] = None,
    engine: EngineOption = None,
    batch: Annotated[list[int], typer.Option(min=1, help="Batch size; may be given several times.")] = [1, 8, 32],
    beam: Annotated[list[int], typer.Option(min=1, help="Beam size; may be given several times.")] = [1, 4],
    sentences: Annotated[
        int, typer.Option(min=1, help="Maximum number of lines to translate, or number of random sentences.")
    ] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions of each measurement; the median is reported.")] = 3,
    as_json: JsonOption = False,
) -> None:
    """Measure your model's decoding speed by batch size, beam size and sentence length.

    Without a text, random tokens are translated, and the output is forced to the length of the input.
    """
    lines = None if file is None else [line for line in islice(read_lines(file), sentences) if line.strip()]
    if lines == []:
        raise DataError(f"{file} is empty: expected text to translate")
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
        timings = measure_translation(translator, [*by_batch, *by_length], rounds, status.update)
        peak = peak_memory(device)  # before the limits are measured, which takes memory too
        share_of_peak = _share_of_peak(translator, device)
    rows = [{**asdict(timing), "share": share_of_peak and share_of_peak(timing)} for timing in timings]
    tables = {"by_batch": rows[: len(by_batch)], "by_length": rows[len(by_batch) :]}
    name = device_name(device)
    if as_json:
        inputs = {"model": str(model), "file": file, "rounds": rounds}
        document = {**inputs, "device": name, "backend": str(choice), "peak_memory": peak, **tables}
        typer.echo(json.dumps(document, indent=2))
        return
    console = output_console()
    console.print(f"{name}; peak memory: {_memory(peak, device.type)}")
    console.print(_translating_table(tables["by_batch"]))
    console.print(
        "by length; as many target tokens as source tokens", _translating_table(tables["by_length"]), sep="\n"
    )
    console.print(f"backend {choice}", highlight=False, markup=False)


def _sources(translator: "Translator", lines: list[str] | None, count: int) -> "TokenSequences":
    """At least `count` sources as ids; lines longer than the model was trained for are truncated."""
    from heed.benchmarking.translating import random_sources, repeat_sources  # noqa: PLC0415 - imports torch

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
    """The same tokens in sources of other lengths; the output is forced to the length of the input."""
    from heed.benchmarking.translating import TranslationJob, rechunk  # noqa: PLC0415

    lengths = [length for length in _LENGTHS if length <= longest]
    return [
        TranslationJob(rechunk(sources, length, batch), batch, beam, length) for batch in batches for length in lengths
    ]


def _share_of_peak(translator: "Translator", device: "torch.device") -> "Callable[[TranslationSpeed], float] | None":
    """A function from a timing to the share of the CPU's peak speed that it reached; None on GPUs."""
    from heed.benchmarking.limits import MatmulDtype, matmul_throughput, memory_bandwidth  # noqa: PLC0415

    if device.type != "cpu":
        return None
    dtype: MatmulDtype = "int8" if translator.backend.choice.dtype == "int8" else "float32"
    config, bytes_each = translator.backend.configs[0], 1 if dtype == "int8" else 4
    peak = matmul_throughput(dtype, device), memory_bandwidth(device)
    return lambda timing: timing.roofline_seconds_per_sentence(config, *peak, bytes_each) / timing.seconds_per_sentence


def _translating_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for heading in ("batch", "beam", "source", "target", "tokens/s", "ms/sentence", "of peak"):
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
