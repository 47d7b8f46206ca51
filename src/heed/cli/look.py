"""`heed look`: what a model looked at, and what it needed, word by word; or a file with all of it."""

from collections.abc import Callable, Sequence
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from heed.cli.options import SearchSet, out_option, search_settings
from heed.cli.output import output_console
from heed.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from heed.interpret.trace import Trace

_HEADS = 6
_LABELS = 10


def look(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    sentence: Annotated[str, typer.Argument(help="What it is to translate, or to read.")],
    target: Annotated[str | None, typer.Option(help="A translation to look at; none: the model's own.")] = None,
    out: Annotated[Path | None, out_option("Save as .html, .svg, .png, .pdf or .json.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Save the numbers of every layer and part.")] = False,
    set_: SearchSet = [],
) -> None:
    """Show which source words each target word leaned on, by attention and by removal, and the strongest heads.

    Of a model that does not translate: what it makes of a text, word by word or as a whole, and the strongest heads.

    With -o look.html: a page to look around in, one file, with every head, a word step by step, and the search.
    """
    if full and (out is None or out.suffix not in (".html", ".json")):
        raise ConfigError(f"--full is for -o look.html or -o look.json; found {f'-o {out}' if out else 'no -o'}")
    search = search_settings(set_)

    from heed.inference.open import look_into  # noqa: PLC0415 - torch takes seconds to import

    trace = look_into(model, sentence, target, search)
    if out is not None:
        trace.save(out, full=full)
        typer.echo(f"the trace is in {out}", err=True)
        return
    console = output_console()
    texts = [text for text in (trace.source.text, trace.target.text) if text]
    console.print(Text("\n".join(_shown(text) for text in texts), style="bold"))
    if trace.cross_attention.size:
        _print_words(console, trace)
    elif trace.labels:
        _print_labels(console, trace)
    else:
        _print_likeliest(console, trace)
    _print_heads(console, trace)


def _print_words(console: Console, trace: "Trace") -> None:
    from heed.interpret.report import alignment_layer  # noqa: PLC0415 - torch takes seconds to import

    layer = alignment_layer(trace.config) or 1
    attention, removal = trace.cross_attention[layer - 1].mean(0), trace.removal().values
    console.print("\nWhich source words each word leaned on as it was written")
    console.print(
        f"by attention: where it looked (cross attention, layer {layer}, mean of its heads)\n"
        "by removal:   what it needed (change of log-probability without the source word)\n"
        "The two may differ: attention is not an explanation.",
        style="dim",
    )
    table = Table("written", "p", "by attention", "by removal", box=box.SIMPLE_HEAD, pad_edge=False)
    _fit(table, "p")
    for row, (token, log_prob) in enumerate(zip(trace.predicted_tokens, trace.predicted_log_probs, strict=True)):
        looked = _telling(attention[row], trace.source_tokens, "{:.0%}".format, 1.0)
        needed = _telling(-removal[row], trace.source_tokens, "−{:.1f}".format, 4.0)
        table.add_row(Text(_shown(token), style="bold"), f"{exp(log_prob):.0%}", looked, needed)
    console.print(table)


def _print_labels(console: Console, trace: "Trace") -> None:
    console.print("\nHow likely each label is")
    table = Table("label", "p", box=box.SIMPLE_HEAD, pad_edge=False)
    table.columns[1].justify = "right"
    for label, _, probability in trace.top(_LABELS)[0]:
        table.add_row(Text(_shown(label), style="bold"), f"{probability:.1%}")
    console.print(table)
    needed = _telling(-trace.removal().values[0], trace.source_tokens, "−{:.1f}".format, 4.0)
    console.print("What the first needed most (change of its log-probability without the word)", style="dim")
    console.print(needed if needed else Text("no word by itself"), "\n")


def _print_likeliest(console: Console, trace: "Trace") -> None:
    """What comes next at each place, or what would stand there were it hidden."""
    if trace.predicted.ids:
        told, heading = "What comes next, from each place", "comes next"
        read, words, log_probs = trace.target_tokens, trace.predicted_tokens, trace.predicted_log_probs
        likeliest = trace.top(3)
    else:
        holes = trace.holes(3)
        told, heading = "What would stand at each place, were the word there hidden", "stands there"
        read, words, log_probs, likeliest = (), trace.source_tokens[:-1], holes.log_probs, holes.top
    console.print(f"\n{told}")
    table = Table(*(["read"] if read else []), heading, "p", "the likeliest", box=box.SIMPLE_HEAD, pad_edge=False)
    _fit(table, "p")
    for row, (token, log_prob, best) in enumerate(zip(words, log_probs, likeliest, strict=True)):
        found = Text("  ").join(
            Text(f"{_shown(one.token)} {one.probability:.0%}", "bold cyan" if one.token == token else "")
            for one in best
        )
        before = [Text(_shown(read[row]), style="dim")] if read else []
        table.add_row(*before, Text(_shown(token), style="bold"), f"{exp(log_prob):.0%}", found)
    console.print(table)


def _fit(table: Table, numbers: str) -> None:
    """Where a terminal is too narrow, texts go on in the next line; numbers stay whole."""
    for column in table.columns:
        column.overflow = "fold"
        if column.header == numbers:
            column.no_wrap, column.min_width, column.justify = True, 4, "right"


def _telling(values: "np.ndarray", tokens: Sequence[str], say: Callable[[float], str], strong: float) -> Text:
    """The tokens with the largest values, the stronger the brighter; what is too small to matter is left out."""
    found = Text()
    for place in values.argsort()[::-1][:3]:
        if (value := float(values[place])) >= 0.1:
            style = "bold cyan" if value >= strong / 2 else "cyan" if value >= strong / 4 else "dim"
            said = "  " * bool(found) + f"{_shown(tokens[place])} {say(value)}"
            found.append(said, style)
    return found


def _print_heads(console: Console, trace: "Trace") -> None:
    read, source = trace.target_tokens, trace.source_tokens
    rows = [f"{_shown(one)}→{_shown(next_)}" for one, next_ in zip(read, trace.predicted_tokens, strict=True)]
    found = [
        (float(weights[first:].max(-1).mean()), f"{kind} {layer}.{head}", _glances(weights, row_names, columns, first))
        for kind, maps, row_names, columns in (
            ("encoder", trace.encoder_attention, [_shown(token) for token in source], source),
            ("decoder", trace.decoder_attention, rows, read),
            ("cross", trace.cross_attention, rows, source),
        )
        for first in (int(kind == "decoder" and len(read) > 1),)  # ⟨s⟩ can see nothing but itself
        for layer, heads in enumerate(maps, 1)
        for head, weights in enumerate(heads, 1)
    ]
    strongest = sorted(found, key=lambda each: -each[0])[:_HEADS]
    console.print(f"The strongest heads: the {len(strongest)} most peaked of {len(found)}")
    told = "peak: the largest weight of a row, on average; 1.2 is head 2 of layer 1"
    console.print(told + "\na→b:  the row that reads a and predicts b" * bool(rows), style="dim")
    table = Table("head", "peak", "for instance, a row and what it looks at", box=box.SIMPLE_HEAD, pad_edge=False)
    _fit(table, "peak")
    for peak, name, glances in strongest:
        table.add_row(Text(name, style="bold"), f"{peak:.2f}", glances)
    console.print(table)


def _glances(weights: "np.ndarray", rows: Sequence[str], columns: Sequence[str], first: int) -> Text:
    """Three rows of a head that look hardest, from the first on, in their order."""
    hardest = sorted(weights[first:].max(-1).argsort()[::-1][:3] + first)
    return Text("   ").join(
        Text.assemble((f"{rows[row]}: ", "dim"), (_shown(columns[weights[row].argmax()]), "cyan")) for row in hardest
    )


def _shown(text: str) -> str:
    """Text that cannot do anything to a terminal: what cannot be seen has a sign."""
    from heed.plots.svg import bidi_isolate, show_invisible  # noqa: PLC0415 - numpy takes its time

    return bidi_isolate(
        " ".join(show_invisible(word) for word in text.strip(" ").split(" ") if word) or show_invisible(text)
    )
