"""`heed pronouns`: whether a model finds what `it` means, and what its il and elle depend on."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from heed.cli.options import open_translator
from heed.cli.output import output_console

if TYPE_CHECKING:
    from heed.interpret.pronouns import PronounCase, Rate


def pronouns(
    model: Annotated[Path, typer.Argument(help="A model folder, such as the demo's: from English to French.")],
    sentences: Annotated[int, typer.Option(min=2, max=20_000, help="How many, an even number.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Another seed: other sentences, another untrained model.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Measure, on held-out sentences of the built-in corpus, where `it` looks and what il and elle depend on."""
    from heed.interpret.pronouns import pronoun_case  # noqa: PLC0415 - torch takes seconds to import
    from heed.interpret.tokens import TextModel  # noqa: PLC0415

    translator = open_translator(model, [], {})
    typer.echo(f"asking about {sentences:,} sentences …", err=True)
    found = pronoun_case(TextModel(translator.model, translator.tokenizers), sentences, seed)
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2))
    else:
        output_console().print(*tables(found), sep="\n")


def tables(found: "PronounCase") -> list[Table]:
    """Everything that was found, at 80 columns."""
    return [_findings(found), _glances(found), _removals(found)]


def _findings(found: "PronounCase") -> Table:
    table = _table(
        f"More weight on the noun meant than on the other, of {found.sentences:,} sentences",
        ("from, head", "trained", "95 % interval", "untrained", "on meant", "on other"),
        "Encoder heads; chance is 50 %. on meant, on other: mean weights, trained.",
    )
    for one, after in zip(found.findings, (*found.findings[1:], None), strict=True):
        weights = (f"{weight:.3f}" for weight in (one.on_antecedent, one.on_other))
        cells = (*_rate(one.trained), f"{one.untrained.share:.1%}", *weights)
        ends = after is None or after.looker != one.looker
        table.add_row(f"{one.looker} {one.layer}.{one.head}", *cells, end_section=ends)
    return table


def _glances(found: "PronounCase") -> Table:
    words = ("it", "antecedent", "other", "adjective")
    table = _table("Mean weight on each source word when il or elle is to be predicted", ("cross head", *words))
    for one in found.glances:
        table.add_row(f"{one.layer}.{one.head}", *(f"{getattr(one, word):.3f}" for word in words))
    return table


def _removals(found: "PronounCase") -> Table:
    table = _table(
        "The right pronoun when a source word is removed",
        ("removed", "forced", "95 % interval", "written", "95 % interval"),
        "forced: il or elle, the likelier after the true French words before it. written: in the model's own "
        "translation of what is left.",
    )
    for one in found.removals:
        table.add_row(one.removed, *_rate(one.forced), *_rate(one.written))
    return table


def _rate(rate: "Rate") -> tuple[str, str]:
    return f"{rate.share:.1%}", f"{rate.low:.1%} to {rate.high:.1%}"


def _table(title: str, headings: tuple[str, ...], caption: str | None = None) -> Table:
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left", box=box.SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == headings[0] else "right", no_wrap=True)
    return table
