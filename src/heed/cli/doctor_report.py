"""The report of `heed doctor`: tables of a corpus's sizes, lengths and problems, the machine and the training plan."""

import os
import re
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from heed.cli.output import counted
from heed.cli.remedies import advice_on

if TYPE_CHECKING:
    from heed.backends.machine import Machine
    from heed.cli.doctor import RunEstimate
    from heed.corpus_checks.text_errors import (
        CleaningResult,
        CorpusForm,
        CorpusReport,
        TextErrorExample,
        TextErrorSummary,
    )
    from heed.training.estimate import Estimate

_BARS = "▁▂▃▄▅▆▇█"
_BINS = 18
_MAX_LABELS = _MAX_UNREADABLE = 20  # rows shown
_DROPPED = {  # by type of problem: what write_clean leaves out
    "unreadable": "unreadable",
    "too_long": "too long",
    "leaked": "also in the validation set",
    "copied": "with target = source",
    "source_foreign": "with the source in the target language",
    "target_foreign": "with the target in the source language",
    "unequal": "of very different length",
    "replacement": "with replacement characters",
    "repeated": "duplicate",
    **{kind: kind for kind in ("empty", "swapped", "mojibake")},
}


@dataclass(frozen=True)
class LengthStatistics:
    """The distribution of text lengths on one side; the histogram's last bin includes all above the 99th percentile."""

    side: str
    unit: str
    shortest: int
    low: int  # 5th percentile
    median: int
    high: int  # 95th percentile
    longest: int
    histogram: tuple[int, ...]

    @classmethod
    def of(cls, side: str, unit: str, texts: Counter[int]) -> "LengthStatistics":
        """texts: the number of texts of each length."""
        ordered = sorted(texts.items())
        cumulative = list(accumulate(count for _, count in ordered))
        low, median, high, top = (
            ordered[bisect_left(cumulative, share * cumulative[-1])][0] for share in (0.05, 0.5, 0.95, 0.99)
        )
        width = -(-(top + 1) // _BINS)
        bins = [0] * (top // width + 1)
        for length, count in ordered:
            bins[min(length, top) // width] += count
        return cls(side, unit, ordered[0][0], low, median, high, ordered[-1][0], tuple(bins))


def show_text(console: Console, report: "CorpusReport") -> None:
    """Print corpus sizes, length statistics, and every type of problem with examples and a remedy."""
    unit = "pair" if report.form == "pairs" else "text"
    title(console, "Corpora")
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right")
    for purpose, corpora in (("training", report.training), ("validation", report.validation)):
        for name, pairs in corpora:
            table.add_row(f"{pairs:,} {unit}s", f"{purpose}:", Text(name, overflow="fold"))
    console.print(Padding(table, (0, 0, 0, 2)))
    console.print(_lengths(report))
    if report.labels:
        console.print(_labels(report))
    title(console, "Problems")
    if not report.findings:
        console.print(f"  [green]No problems in {report.pairs:,} {unit}s.[/green]\n")
    names = _short_names(report.findings)
    for finding in report.findings:
        _show_finding(console, finding, names, report.form)
    for note in report.notes:
        console.print(Padding(Text(f"Not checked: {note}."), (0, 0, 1, 2)))


def show_cleaned(console: Console, cleaned: "CleaningResult", form: "CorpusForm") -> None:
    """Print how many pairs were written to the cleaned file, and how many were left out and why."""
    unit = "pair" if form == "pairs" else "text"
    left_out = ", ".join(f"{count:,} {_DROPPED[kind]}" for kind, count in cleaned.dropped.items()) or "none"
    title(console, "Written")
    summary = f"{cleaned.file}: {counted(cleaned.kept, unit)}; left out: {left_out}."
    if cleaned.respaced:
        summary += f" In {counted(cleaned.respaced, unit)} tabs or line ends became spaces: a .jsonl file keeps them."
    console.print(Padding(Text(summary), (0, 2, 1, 2)))


def title(console: Console, name: str) -> None:
    console.rule(f"[bold]{name}", align="left", style="dim")


def _lengths(report: "CorpusReport") -> Table:
    table = Table("length", "min", "5 %", "median", "95 %", "max", "histogram up to 99 %", box=box.SIMPLE_HEAD)
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[1:6]:
        column.justify = "right"
    for (side, unit), counts in report.lengths.items():
        lengths = LengthStatistics.of(side, unit, counts)
        numbers = (lengths.shortest, lengths.low, lengths.median, lengths.high, lengths.longest)
        name = f"{side} {unit}" if report.form == "pairs" else unit
        table.add_row(name, *(f"{number:,}" for number in numbers), _bars(lengths.histogram))
    return table


def _labels(report: "CorpusReport") -> Table:
    """Label counts, the most frequent label first."""
    table = Table("label", "training", "share", "validation", box=box.SIMPLE_HEAD)
    for column in table.columns[1:]:
        column.justify = "right"
    rows = list(report.labels.items())[:_MAX_LABELS]
    for label, (training, validation) in rows:
        table.add_row(Text(_escaped(label)), f"{training:,}", f"{training / report.pairs:.1%}", f"{validation:,}")
    if hidden := len(report.labels) - len(rows):
        table.add_row(f"… and {hidden:,} more", "", "", "")
    return table


def _bars(histogram: tuple[int, ...]) -> str:
    """A bar per bin, a space for an empty bin."""
    highest = max(histogram)
    return "".join(_BARS[-(-count * len(_BARS) // highest) - 1] if count else " " for count in histogram)


def _short_names(findings: tuple["TextErrorSummary", ...]) -> dict[str, str]:
    """The name of each file, or its whole path where two files have the same name."""
    examples = [example for finding in findings for example in finding.examples]
    paths = {example.file for example in examples} | {example.also.rpartition(":")[0] for example in examples}
    basenames = Counter(os.path.basename(path) for path in paths)
    return {path: path if basenames[os.path.basename(path)] > 1 else os.path.basename(path) for path in paths}


def _show_finding(console: Console, finding: "TextErrorSummary", names: dict[str, str], form: "CorpusForm") -> None:
    description, unit, remedy = advice_on(finding.kind, form)
    heading, examples, advice = (Table.grid(padding=(0, 2, 0, 0), expand=True) for _ in range(3))
    heading.add_column(ratio=1, style="bold yellow")
    heading.add_column(style="bold")
    heading.add_row(description, counted(finding.count, unit))
    examples.add_column(no_wrap=True, style="cyan")
    examples.add_column(no_wrap=finding.kind != "unreadable", overflow="ellipsis", ratio=1)
    for example in finding.examples[:_MAX_UNREADABLE]:
        _add_example(examples, example, names)
    if finding.kind == "unreadable" and finding.count > _MAX_UNREADABLE:
        examples.add_row(f"… and {finding.count - _MAX_UNREADABLE:,} more", "")
    advice.add_row("→", f"{remedy} {finding.advice}".rstrip())
    advice.columns[1].ratio = 1
    for table, indent in ((heading, 2), (examples, 4), (advice, 4)):
        console.print(Padding(table, (0, 0, 0, indent)))
    console.print()


def _add_example(table: Table, example: "TextErrorExample", names: dict[str, str]) -> None:
    location = Text(f"{names[example.file]}:{example.line}")
    file, _, line = example.also.rpartition(":")
    also = Text(f"also {names[file]}:{line}", "dim") if file else Text()
    if len(example.texts) == 1:
        (text,) = example.texts
        table.add_row(location, Text(_with_visible_spaces(text)) if text else Text("(empty)", "dim"))
        if also:
            table.add_row(also, "")
    else:
        for label, text in zip((location, also), example.texts, strict=True):
            table.add_row(label, Text(_escaped(text)) if text else Text("(empty)", "dim"))


def _with_visible_spaces(text: str) -> str:
    """The text with leading, trailing and doubled spaces as ␣."""
    return _escaped(re.sub("^ +| +$| {2,}", lambda spaces: "␣" * len(spaces[0]), text))


def _escaped(text: str) -> str:
    """The text with unprintable characters and unusual spaces as Python escapes."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def show_estimate(console: Console, run: "RunEstimate", note: str = "") -> None:
    """Print the estimated time per step and epoch, the memory, and how reliable the estimate is."""
    estimate = run.estimate
    title(console, f"Training with the preset {run.preset}")
    speed = f"{estimate.tokens_per_step:,} tokens, {estimate.tokens_per_second:,.0f} tokens/s"
    rows = {
        "model": f"{run.parameters:,} parameters, vocabulary of {run.vocab_size:,} tokens",
        "device": estimate.device,
        "step": f"{_duration(estimate.seconds_per_step)}: {speed}",
        "epoch": "",
        "whole run": f"at most {_duration(estimate.seconds)}: {counted(estimate.max_steps, 'step')}",
        "memory": _memory(estimate),
    }
    if run.steps_per_epoch is None:
        del rows["epoch"]
    else:
        steps = run.steps_per_epoch
        rows["epoch"] = f"{_duration(steps * estimate.seconds_per_step)}: {counted(steps, 'step')}"
    if run.output_length is not None:
        rows["output length"] = run.output_length
    _show_facts(console, rows)
    if run.choices:
        console.print("  Settings chosen for this corpus:")
        console.print(Padding(Text("\n".join(run.choices)), (0, 2, 1, 4)))
    reliability = (
        f"Estimated from the fastest of several steps of {estimate.tokens_timed:,} tokens, without validation and "
        "checkpoints."
    )
    if (slower := estimate.median_seconds_per_step / estimate.seconds_per_step) > 1.2:
        reliability += f" Step times varied: the median step took {slower:.1f} times as long."
    if estimate.device.startswith("CPU") and estimate.processor_share < 0.8:
        reliability += (
            f" Other processes are running: this one got {estimate.processor_share:.0%} of the CPU time it requested, "
            "so training may be several times faster on an idle machine."
        )
    console.print(Padding(Text(reliability + note, "dim"), (0, 2, 1, 2)))


def _memory(estimate: "Estimate") -> str:
    needed = f"{'' if estimate.memory_measured else 'about '}{_size(estimate.memory)}"
    if estimate.memory_there is None:
        return needed
    if estimate.memory > estimate.memory_there:
        return (
            f"{needed}, more than the {_size(estimate.memory_there)} available: lower "
            "training.tokens_per_batch and raise training.accumulate by the same factor"
        )
    return f"{needed} of {_size(estimate.memory_there)}"


def show_machine(console: Console, machine: "Machine") -> None:
    """Print the CPU, GPUs, memory and optional packages of this machine."""
    title(console, "This machine")
    memory = "" if machine.memory is None else f", {_size(machine.memory)} of memory"
    rows = {
        "system": f"{machine.system}, Python {machine.python}, torch {machine.torch}",
        "CPU": f"{machine.cores} cores, torch uses {machine.threads} ({machine.instructions}){memory}",
        "CPU bfloat16": machine.cpu_bfloat16,
        "compiled C": f"{machine.cpu_compiled} (for inference and training)",
        "inference": machine.inference["float32"],
        "  in int8": machine.inference["int8"],
        "training": machine.training,
    }
    for number, gpu in enumerate(machine.gpus):
        bfloat16 = "bfloat16 works" if gpu.bfloat16 else "no bfloat16: set training.precision=float32"
        rows[f"GPU {number}"] = f"{gpu.name}, {_size(gpu.free)} of {_size(gpu.memory)} free, {bfloat16}"
    if not machine.gpus:
        rows["GPU"] = "none that torch can use: training runs on the CPU"
    for extra, packages in machine.packages.items():
        installed = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
        missing = [name for name, version in packages.items() if version is None]
        install = f"missing {', '.join(missing)}: pip install 'heed[{extra}]'" if missing else ""
        rows[f"extra {extra}"] = "; ".join(filter(None, (installed, install)))
    _show_facts(console, rows)


def _show_facts(console: Console, rows: dict[str, str]) -> None:
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        table.add_row(Text(name, "bold"), Text(value))
    console.print(Padding(table, (0, 2, 1, 2)))


def _duration(seconds: float) -> str:
    """A duration in its two largest units: `2 h 5 min`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    rest, parts = round(seconds), list[str]()
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count or parts:
            parts.append(f"{count:,} {unit}")
    return " ".join(parts[:2])


def _size(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
