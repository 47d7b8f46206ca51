"""What a person sees of an examined text: how much there is, how long it is, what was found and what to do about it."""

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

if TYPE_CHECKING:
    from heed.text.health import Example, Finding, Health

# Of each kind of finding: what it is, what is counted, and what to do about it.
WORDS: dict[str, tuple[str, str, str]] = {
    "leaked": (
        "Validation pair that is in training too",
        "pair",
        "Take it out of training: a score on what was learnt by heart says nothing.",
    ),
    "leaked_source": (
        "Validation source that is in training, with another target",
        "pair",
        "A few short ones are chance. If there are many, the texts were split badly: split by document.",
    ),
    "leaked_target": (
        "Validation target that is in training, with another source",
        "pair",
        "A few short ones are chance; many make the validation score too good.",
    ),
    "swapped": (
        "Source and target seem to be swapped",
        "pair",
        "Swap them back, or leave them out. Judged by the letters that are usual on each side.",
    ),
    "source_foreign": (
        "Source reads like the target's language",
        "pair",
        "Leave it out: it teaches the model to copy. Judged by the letters that are usual on each side.",
    ),
    "target_foreign": (
        "Target reads like the source's language",
        "pair",
        "Leave it out, or translate it: it teaches the model to copy.",
    ),
    "copied": (
        "Source and target are the same",
        "pair",
        "Right for names and numbers; of sentences even one in a hundred teaches the model to copy.",
    ),
    "unlike": (
        "A side is unlike all the rest of that side",
        "pair",
        "Look at it: a third language, code or noise? Leave out what is; rare names are harmless.",
    ),
    "empty": ("A side is empty", "pair", "Nothing need be done: training leaves it out, and says so."),
    "too_long": (
        "Probably longer than data.max_tokens",
        "pair",
        "Training leaves it out. Cut it into sentences, or raise data.max_tokens.",
    ),
    "unequal": (
        "One side is far longer than the other",
        "pair",
        "Look at it: probably not a translation, or one of several sentences.",
    ),
    "repeated": (
        "Pair that was there before",
        "pair",
        "A few are harmless; many weigh more than they should. Leave them out, or weigh corpora with --weight.",
    ),
    "ambiguous": (
        "Source with several targets",
        "source",
        "Normal in small numbers. If there are many, the model averages: look whether lines have slipped.",
    ),
    "replacement": (
        "Replacement characters (U+FFFD)",
        "text",
        "Letters were lost when the text was converted: go back to the original, or leave it out.",
    ),
    "mojibake": (
        "UTF-8 that was taken for Latin-1",
        "text",
        "Convert it back (the package ftfy does): the model would learn to write it.",
    ),
    "control": (
        "Control or invisible characters",
        "text",
        "Remove them: nobody sees them, but every one is a token.",
    ),
    "spaces": (
        "Tabs, no-break, doubled, leading or trailing spaces",
        "text",
        "Make each a plain single space: a word after another space is another token.",
    ),
    "markup": ("HTML entities or tags", "text", "Unescape entities and take tags out, unless they are to be learnt."),
    "decomposed": (
        "Letters and accents apart (not in Unicode's NFC)",
        "text",
        "Normalise to NFC: people and most texts write é as one character, to the model é is another word.",
    ),
}
_BARS = "▁▂▃▄▅▆▇█"
_BINS = 18


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


def show_text(console: Console, health: "Health") -> None:
    """All of it."""
    title(console, "Text")
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right")
    for purpose, corpora in (("to learn from", health.training), ("to validate on", health.validation)):
        for name, pairs in corpora:
            table.add_row(f"{pairs:,} pairs", f"{purpose}:", Text(name, overflow="fold"))
    console.print(Padding(table, (0, 0, 0, 2)))
    console.print(_lengths(health))
    title(console, "Findings")
    if not health.findings:
        console.print(f"  [green]Nothing wrong was found: {health.pairs:,} clean pairs.[/green]\n")
    names = _short_names(health.findings)
    for finding in health.findings:
        _show_finding(console, finding, names)
    for note in health.notes:
        console.print(Padding(Text(f"Not looked at: {note}."), (0, 0, 1, 2)))


def counted(count: int, unit: str) -> str:
    """`1 pair`, `1,200 pairs`."""
    return f"{count:,} {unit}{'' if count == 1 else 's'}"


def title(console: Console, name: str) -> None:
    """A heading across the terminal."""
    console.rule(f"[bold]{name}", align="left", style="dim")


def _lengths(health: "Health") -> Table:
    table = Table("length", "least", "5 %", "median", "95 %", "most", "shape, up to 99 %", box=box.SIMPLE_HEAD)
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[1:6]:
        column.justify = "right"
    for (side, unit), counts in health.lengths.items():
        one = Lengths.of(side, unit, counts)
        numbers = (one.shortest, one.low, one.median, one.high, one.longest)
        table.add_row(f"{side} {unit}", *(f"{number:,}" for number in numbers), _bars(one.histogram))
    return table


def _bars(histogram: tuple[int, ...]) -> str:
    """A bar for each bin, and none for an empty one."""
    most = max(histogram)
    return "".join(_BARS[-(-count * len(_BARS) // most) - 1] if count else " " for count in histogram)


def _short_names(findings: tuple["Finding", ...]) -> dict[str, str]:
    """What to call each file: its name, or its whole path where two have the same name."""
    examples = [example for finding in findings for example in finding.examples]
    paths = {example.file for example in examples} | {example.also.rpartition(":")[0] for example in examples}
    times = Counter(os.path.basename(path) for path in paths)
    return {path: path if times[os.path.basename(path)] > 1 else os.path.basename(path) for path in paths}


def _show_finding(console: Console, finding: "Finding", names: dict[str, str]) -> None:
    what, unit, remedy = WORDS[finding.kind]
    heading, examples, advice = (Table.grid(padding=(0, 2, 0, 0), expand=True) for _ in range(3))
    heading.add_column(ratio=1, style="bold yellow")
    heading.add_column(style="bold")
    heading.add_row(what, counted(finding.count, unit))
    examples.add_column(no_wrap=True, style="cyan")
    examples.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for example in finding.examples:
        _add_example(examples, example, names)
    advice.add_row("→", remedy)
    advice.columns[1].ratio = 1
    for part, indent in ((heading, 2), (examples, 4), (advice, 4)):
        console.print(Padding(part, (0, 0, 0, indent)))
    console.print()


def _add_example(table: Table, example: "Example", names: dict[str, str]) -> None:
    where = Text(f"{names[example.file]}:{example.line}")
    file, _, line = example.also.rpartition(":")
    also = Text(f"also {names[file]}:{line}", "dim") if file else Text()
    if len(example.texts) == 1:
        table.add_row(where, Text(_visible(example.texts[0])))
    else:
        for place, text in zip((where, also), example.texts, strict=True):
            table.add_row(place, Text(_escaped(text)) if text else Text("(nothing)", "dim"))


def _visible(text: str) -> str:
    """With spaces that are too many as signs."""
    return _escaped(re.sub("^ +| +$| {2,}", lambda spaces: "␣" * len(spaces[0]), text))


def _escaped(text: str) -> str:
    """With whatever cannot be printed, or can be mistaken for a space, written as Python would."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)
