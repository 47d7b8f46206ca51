"""`heed look`: shows attention, leave-one-out attribution and predictions for a sentence, or saves them as a file."""

from collections.abc import Callable, Sequence
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from heed.cli.options import SearchSetOption, out_option, search_settings
from heed.cli.output import output_console
from heed.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from heed.interpret.trace import Trace

_HEADS_SHOWN = 6
_LABELS_SHOWN = 10


def look(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    sentence: Annotated[str, typer.Argument(help="Sentence to translate, or to run the model on.")],
    target: Annotated[str | None, typer.Option(help="Translation to trace; default: the model's own.")] = None,
    out: Annotated[
        Path | None, out_option("Save as a .html, .svg, .png, .pdf or .json file instead of printing.")
    ] = None,
    full: Annotated[
        bool,
        typer.Option("--full", help="Also save the activations of every layer and sub-layer; for .html and .json."),
    ] = False,
    set_: SearchSetOption = [],
) -> None:
    """Show which source tokens each target token depends on, by attention and by leaving them out.

    Also shows the most peaked attention heads. For a language model, masked language model or classifier, shows its
    predictions instead.

    With -o look.html: an interactive page in one file, with every head, the logit lens and the beam search.
    """
    if full and (out is None or out.suffix not in (".html", ".json")):
        raise ConfigError(f"--full needs -o look.html or -o look.json; found {f'-o {out}' if out else 'no -o'}")
    search = search_settings(set_)

    from heed.inference.open import look_into  # noqa: PLC0415 - slow to import

    trace = look_into(model, sentence, target, search)
    if out is not None:
        trace.save(out, full=full)
        typer.echo(f"trace written to {out}", err=True)
        return
    console = output_console()
    texts = [text for text in (trace.source.text, trace.target.text) if text]
    console.print(Text("\n".join(_printable(text) for text in texts), style="bold"))
    if trace.cross_attention.size:
        _print_attribution(console, trace)
    elif trace.labels:
        _print_labels(console, trace)
    else:
        _print_predictions(console, trace)
    _print_heads(console, trace)


def _print_attribution(console: Console, trace: "Trace") -> None:
    from heed.interpret.report import alignment_layer  # noqa: PLC0415 - torch takes seconds to import

    layer = alignment_layer(trace.config) or 1
    attention, removal = trace.cross_attention[layer - 1].mean(0), trace.removal().values
    console.print("\nSource tokens that each target token depends on")
    console.print(
        f"attention:     cross-attention weight, layer {layer}, mean of its heads\n"
        "leave-one-out: change of the target's log-probability without the source token\n"
        "The two may differ: attention is not an explanation.",
        style="dim",
    )
    table = Table("target", "p", "attention", "leave-one-out", box=box.SIMPLE_HEAD, pad_edge=False)
    _fit(table, "p")
    for row, (token, log_prob) in enumerate(zip(trace.predicted_tokens, trace.predicted_log_probs, strict=True)):
        attended = _largest(attention[row], trace.source_tokens, "{:.0%}".format, 1.0)
        needed = _largest(-removal[row], trace.source_tokens, "−{:.1f}".format, 4.0)
        table.add_row(Text(_printable(token), style="bold"), f"{exp(log_prob):.0%}", attended, needed)
    console.print(table)


def _print_labels(console: Console, trace: "Trace") -> None:
    console.print("\nProbability of each label")
    table = Table("label", "p", box=box.SIMPLE_HEAD, pad_edge=False)
    table.columns[1].justify = "right"
    for label, _, probability in trace.top(_LABELS_SHOWN)[0]:
        table.add_row(Text(_printable(label), style="bold"), f"{probability:.1%}")
    console.print(table)
    needed = _largest(-trace.removal().values[0], trace.source_tokens, "−{:.1f}".format, 4.0)
    console.print("Leave-one-out: change of the first label's log-probability without the token", style="dim")
    console.print(needed if needed else Text("no single token matters"), "\n")


def _print_predictions(console: Console, trace: "Trace") -> None:
    """A language model's next token, or a masked language model's token, at each position."""
    if trace.predicted.ids:
        title, heading = "Next token at each position", "next"
        read, tokens, log_probs = trace.target_tokens, trace.predicted_tokens, trace.predicted_log_probs
        top = trace.top(3)
    else:
        masked = trace.holes(3)
        title, heading = "Prediction at each position if its token is masked", "token"
        read, tokens, log_probs, top = (), trace.source_tokens[:-1], masked.log_probs, masked.top
    console.print(f"\n{title}")
    table = Table(*(["read"] if read else []), heading, "p", "top 3", box=box.SIMPLE_HEAD, pad_edge=False)
    _fit(table, "p")
    for row, (token, log_prob, candidates) in enumerate(zip(tokens, log_probs, top, strict=True)):
        top_tokens = Text("  ").join(
            Text(f"{_printable(other.token)} {other.probability:.0%}", "bold cyan" if other.token == token else "")
            for other in candidates
        )
        before = [Text(_printable(read[row]), style="dim")] if read else []
        table.add_row(*before, Text(_printable(token), style="bold"), f"{exp(log_prob):.0%}", top_tokens)
    console.print(table)


def _fit(table: Table, numeric: str) -> None:
    """In a narrow terminal, wrap text columns and keep the numeric column whole."""
    for column in table.columns:
        column.overflow = "fold"
        if column.header == numeric:
            column.no_wrap, column.min_width, column.justify = True, 4, "right"


def _largest(values: "np.ndarray", tokens: Sequence[str], form: Callable[[float], str], strong: float) -> Text:
    """The up to three tokens with the largest values of at least 0.1; larger values are brighter."""
    text = Text()
    for position in values.argsort()[::-1][:3]:
        if (value := float(values[position])) >= 0.1:
            style = "bold cyan" if value >= strong / 2 else "cyan" if value >= strong / 4 else "dim"
            text.append("  " * bool(text) + f"{_printable(tokens[position])} {form(value)}", style)
    return text


def _print_heads(console: Console, trace: "Trace") -> None:
    read, source = trace.target_tokens, trace.source_tokens
    rows = [f"{_printable(a)}→{_printable(b)}" for a, b in zip(read, trace.predicted_tokens, strict=True)]
    heads = [
        (float(weights[first:].max(-1).mean()), f"{kind} {layer}.{head}", _examples(weights, row_names, columns, first))
        for kind, layers, row_names, columns in (
            ("encoder", trace.encoder_attention, [_printable(token) for token in source], source),
            ("decoder", trace.decoder_attention, rows, read),
            ("cross", trace.cross_attention, rows, source),
        )
        for first in (int(kind == "decoder" and len(read) > 1),)  # ⟨s⟩ can attend only to itself
        for layer, layer_weights in enumerate(layers, 1)
        for head, weights in enumerate(layer_weights, 1)
    ]
    peaked = sorted(heads, key=lambda head: -head[0])[:_HEADS_SHOWN]
    console.print(f"The {len(peaked)} most peaked of {len(heads)} attention heads")
    legend = "peak: the largest weight of a row, averaged over rows; 1.2 is head 2 of layer 1"
    console.print(legend + "\na→b:  the row of query token a, which predicts b" * bool(rows), style="dim")
    table = Table("head", "peak", "examples: a row and the token it attends to", box=box.SIMPLE_HEAD, pad_edge=False)
    _fit(table, "peak")
    for peak, name, examples in peaked:
        table.add_row(Text(name, style="bold"), f"{peak:.2f}", examples)
    console.print(table)


def _examples(weights: "np.ndarray", rows: Sequence[str], columns: Sequence[str], first: int) -> Text:
    """The three rows with the largest weights, in order, with the token each attends to most."""
    largest = sorted(weights[first:].max(-1).argsort()[::-1][:3] + first)
    return Text("   ").join(
        Text.assemble((f"{rows[row]}: ", "dim"), (_printable(columns[weights[row].argmax()]), "cyan"))
        for row in largest
    )


def _printable(text: str) -> str:
    """Text without escape sequences for the terminal; invisible characters are shown as symbols."""
    from heed.plots.svg import bidi_isolate, show_invisible  # noqa: PLC0415 - numpy takes its time

    return bidi_isolate(
        " ".join(show_invisible(word) for word in text.strip(" ").split(" ") if word) or show_invisible(text)
    )
