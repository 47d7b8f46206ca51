"""What `heed doctor` prints: a text's size, lengths and faults; this machine; and what training would take on it.

Enters: what the corpus checks counted, a `Machine`, a `Plan`. Leaves: tables on a console. Measures nothing itself.
"""

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
from heed.cli.remedies import words_for

if TYPE_CHECKING:
    from heed.backends.machine import Machine
    from heed.cli.doctor import Plan
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
_LABELS = _UNREADABLE = 20  # most that are listed
_KINDS = {
    "unreadable": "that cannot be read",
    "too_long": "too long",
    "leaked": "in validation too",
    "copied": "with target = source",
    "source_foreign": "with a source in the target's language",
    "target_foreign": "with a target in the source's language",
    "unequal": "of very unequal length",
    "replacement": "with replacement characters",
    **{kind: kind for kind in ("empty", "repeated", "swapped", "mojibake")},
}  # what a cleaned text is without


@dataclass(frozen=True)
class Lengths:
    """How long the texts of one side are; the histogram's bins are equally wide, and the last has all above 99 %."""

    side: str
    unit: str
    shortest: int
    low: int  # 5 % are shorter
    median: int
    high: int  # 5 % are longer
    longest: int
    histogram: tuple[int, ...]

    @classmethod
    def of(cls, side: str, unit: str, texts: Counter[int]) -> "Lengths":
        """From how many texts there are of each length."""
        ordered = sorted(texts.items())
        up_to = list(accumulate(count for _, count in ordered))
        low, median, high, top = (
            ordered[bisect_left(up_to, share * up_to[-1])][0] for share in (0.05, 0.5, 0.95, 0.99)
        )
        width = -(-(top + 1) // _BINS)
        bins = [0] * (top // width + 1)
        for length, count in ordered:
            bins[min(length, top) // width] += count
        return cls(side, unit, ordered[0][0], low, median, high, ordered[-1][0], tuple(bins))


def show_text(console: Console, report: "CorpusReport") -> None:
    """Print how much text there is, how long its sentences are, and every finding with examples and a remedy."""
    unit = "pair" if report.form == "pairs" else "text"
    title(console, "Text")
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right")
    for purpose, corpora in (("to learn from", report.training), ("to validate on", report.validation)):
        for name, pairs in corpora:
            table.add_row(f"{pairs:,} {unit}s", f"{purpose}:", Text(name, overflow="fold"))
    console.print(Padding(table, (0, 0, 0, 2)))
    console.print(_lengths(report))
    if report.labels:
        console.print(_labels(report))
    title(console, "Findings")
    if not report.findings:
        console.print(f"  [green]Nothing wrong was found: {report.pairs:,} clean {unit}s.[/green]\n")
    names = _short_names(report.findings)
    for finding in report.findings:
        _show_finding(console, finding, names, report.form)
    for note in report.notes:
        console.print(Padding(Text(f"Not looked at: {note}."), (0, 0, 1, 2)))


def show_cleaned(console: Console, cleaned: "CleaningResult", form: "CorpusForm") -> None:
    """What was written, and what was left out."""
    unit = "pair" if form == "pairs" else "text"
    left_out = ", ".join(f"{count:,} {_KINDS[kind]}" for kind, count in cleaned.dropped.items()) or "none"
    title(console, "Written")
    said = f"{cleaned.file}: {counted(cleaned.kept, unit)}; left out: {left_out}."
    if cleaned.respaced:
        said += f" In {counted(cleaned.respaced, unit)} tabs or line ends became spaces: a .jsonl file keeps them."
    console.print(Padding(Text(said), (0, 2, 1, 2)))


def title(console: Console, name: str) -> None:
    """A heading across the terminal."""
    console.rule(f"[bold]{name}", align="left", style="dim")


def _lengths(report: "CorpusReport") -> Table:
    table = Table("length", "least", "5 %", "median", "95 %", "most", "shape, up to 99 %", box=box.SIMPLE_HEAD)
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[1:6]:
        column.justify = "right"
    for (side, unit), counts in report.lengths.items():
        one = Lengths.of(side, unit, counts)
        numbers = (one.shortest, one.low, one.median, one.high, one.longest)
        name = f"{side} {unit}" if report.form == "pairs" else unit
        table.add_row(name, *(f"{number:,}" for number in numbers), _bars(one.histogram))
    return table


def _labels(report: "CorpusReport") -> Table:
    """How often each label is there, the most frequent first."""
    table = Table("label", "to learn from", "share", "to validate on", box=box.SIMPLE_HEAD)
    for column in table.columns[1:]:
        column.justify = "right"
    shown = list(report.labels.items())[:_LABELS]
    for label, (learnt, held_out) in shown:
        table.add_row(Text(_escaped(label)), f"{learnt:,}", f"{learnt / report.pairs:.1%}", f"{held_out:,}")
    if left := len(report.labels) - len(shown):
        table.add_row(f"… and {left:,} more", "", "", "")
    return table


def _bars(histogram: tuple[int, ...]) -> str:
    """A bar for each bin, and none for an empty one."""
    most = max(histogram)
    return "".join(_BARS[-(-count * len(_BARS) // most) - 1] if count else " " for count in histogram)


def _short_names(findings: tuple["TextErrorSummary", ...]) -> dict[str, str]:
    """What to call each file: its name, or its whole path where two have the same name."""
    examples = [example for finding in findings for example in finding.examples]
    paths = {example.file for example in examples} | {example.also.rpartition(":")[0] for example in examples}
    times = Counter(os.path.basename(path) for path in paths)
    return {path: path if times[os.path.basename(path)] > 1 else os.path.basename(path) for path in paths}


def _show_finding(console: Console, finding: "TextErrorSummary", names: dict[str, str], form: "CorpusForm") -> None:
    what, unit, remedy = words_for(finding.kind, form)
    heading, examples, advice = (Table.grid(padding=(0, 2, 0, 0), expand=True) for _ in range(3))
    heading.add_column(ratio=1, style="bold yellow")
    heading.add_column(style="bold")
    heading.add_row(what, counted(finding.count, unit))
    examples.add_column(no_wrap=True, style="cyan")
    examples.add_column(no_wrap=finding.kind != "unreadable", overflow="ellipsis", ratio=1)
    for example in finding.examples[:_UNREADABLE]:
        _add_example(examples, example, names)
    if finding.kind == "unreadable" and finding.count > _UNREADABLE:
        examples.add_row(f"… and {finding.count - _UNREADABLE:,} more", "")
    advice.add_row("→", f"{remedy} {finding.advice}".rstrip())
    advice.columns[1].ratio = 1
    for part, indent in ((heading, 2), (examples, 4), (advice, 4)):
        console.print(Padding(part, (0, 0, 0, indent)))
    console.print()


def _add_example(table: Table, example: "TextErrorExample", names: dict[str, str]) -> None:
    where = Text(f"{names[example.file]}:{example.line}")
    file, _, line = example.also.rpartition(":")
    also = Text(f"also {names[file]}:{line}", "dim") if file else Text()
    if len(example.texts) == 1:
        (text,) = example.texts
        table.add_row(where, Text(_visible(text)) if text else Text("(nothing)", "dim"))
        if also:
            table.add_row(also, "")
    else:
        for place, text in zip((where, also), example.texts, strict=True):
            table.add_row(place, Text(_escaped(text)) if text else Text("(nothing)", "dim"))


def _visible(text: str) -> str:
    """With spaces that are too many as signs."""
    return _escaped(re.sub("^ +| +$| {2,}", lambda spaces: "␣" * len(spaces[0]), text))


def _escaped(text: str) -> str:
    """With whatever cannot be printed, or can be mistaken for a space, written as Python would."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def show_plan(console: Console, plan: "Plan", note: str = "") -> None:
    """Print what a run would take: time per step and epoch, memory, and how sure the estimate is."""
    one = plan.estimate
    title(console, f"Training with the preset {plan.preset}")
    speed = f"{one.tokens_per_step:,} tokens, {one.tokens_per_second:,.0f} tokens/s"
    rows = {
        "model": f"{plan.parameters:,} parameters, {plan.vocab_size:,} tokens",
        "device": one.device,
        "a step": f"{_duration(one.seconds_per_step)}: {speed}",
        "an epoch": "",
        "all": f"at most {_duration(one.seconds)}: {counted(one.max_steps, 'step')}",
        "memory": _memory(one),
    }
    if plan.steps_per_epoch is None:
        del rows["an epoch"]
    else:
        steps = plan.steps_per_epoch
        rows["an epoch"] = f"{_duration(steps * one.seconds_per_step)}: {counted(steps, 'step')}"
    _show_facts(console, rows)
    measured = f"An estimate, from the fastest of steps of {one.tokens_timed:,} tokens, without validation and saving."
    if (slower := one.median_seconds_per_step / one.seconds_per_step) > 1.2:
        measured += f" The steps differed: half of them took {slower:.1f} times as long, or longer."
    if one.device.startswith("CPU") and one.processor_share < 0.8:
        measured += (
            f" Other work runs here: this process got {one.processor_share:.0%} of the processor time it asked for, so "
            "training may take several times less on an idle machine."
        )
    measured += note
    console.print(Padding(Text(measured, "dim"), (0, 2, 1, 2)))


def _memory(one: "Estimate") -> str:
    needed = f"{'' if one.memory_measured else 'about '}{_size(one.memory)}"
    if one.memory_there is None:
        return needed
    if one.memory > one.memory_there:
        return (
            f"{needed}, more than the {_size(one.memory_there)} there are: lower "
            "training.tokens_per_batch and raise training.accumulate as much"
        )
    return f"{needed} of {_size(one.memory_there)}"


def show_machine(console: Console, found: "Machine") -> None:
    """Print the processors, GPUs, memory and optional packages of this machine."""
    title(console, "This machine")
    memory = "" if found.memory is None else f", {_size(found.memory)} of memory"
    rows = {
        "system": f"{found.system}, Python {found.python}, torch {found.torch}",
        "CPU": f"{found.cores} cores, torch uses {found.threads} ({found.instructions}){memory}",
        "bfloat16 on it": found.cpu_bfloat16,
        "compiled code": f"{found.cpu_compiled} (for inference and training)",
        "translating": found.inference["float32"],
        "  in int8": found.inference["int8"],
        "training": found.training,
    }
    for number, gpu in enumerate(found.gpus):
        half = "bfloat16 works" if gpu.bfloat16 else "no bfloat16: set training.precision=float32"
        rows[f"GPU {number}"] = f"{gpu.name}, {_size(gpu.free)} of {_size(gpu.memory)} free, {half}"
    if not found.gpus:
        rows["GPU"] = "none that torch can use: training runs on the CPU"
    for extra, packages in found.packages.items():
        there = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
        missing = [name for name, version in packages.items() if version is None]
        install = f"missing {', '.join(missing)}: pip install 'heed[{extra}]'" if missing else ""
        rows[f"for {extra}"] = "; ".join(filter(None, (there, install)))
    _show_facts(console, rows)


def _show_facts(console: Console, rows: dict[str, str]) -> None:
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        table.add_row(Text(name, "bold"), Text(value))
    console.print(Padding(table, (0, 2, 1, 2)))


def _duration(seconds: float) -> str:
    """In the two largest units: `2 h 5 min`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole, parts = round(seconds), list[str]()
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, whole = divmod(whole, length)
        if count or parts:
            parts.append(f"{count:,} {unit}")
    return " ".join(parts[:2])


def _size(number: int) -> str:
    """Bytes of memory as text in GiB."""
    return f"{number / 2**30:.1f} GiB"
