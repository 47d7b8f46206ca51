"""`heed heads`: what each head of a model does, over a corpus."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from heed.cli.output import output_console
from heed.config import SearchConfig
from heed.errors import DataError, InputError
from heed.text.corpus import Corpus, read_lines, read_pairs

if TYPE_CHECKING:
    from heed.inference.translator import Translator
    from heed.interpret.head_statistics import HeadStatistics, Ids
    from heed.interpret.tokens import TextModel

_COLUMNS = {  # heading: field
    "bits": "entropy",
    "even": "evenness",
    "away": "distance",
    "prev": "previous",
    "same": "same",
    "next": "next",
    "end": "end",
    "sharp": "sharpness",
    "cover": "coverage",
}


def heads(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    source: Annotated[str, typer.Option(help="Source text, a sentence a line; or text of whatever the model reads.")],
    target: Annotated[str | None, typer.Option(help="Its translations; else the model's own, greedy ones.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Measure what each head looks at, and say it in a word."""
    if target is None:
        sources, targets = list(read_lines(source)), None
    else:
        pairs = list(read_pairs(Corpus(source, target)))
        sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    if not sources:
        raise DataError(f"{source} is empty: there is nothing to look at")

    from heed.inference.open import open_any  # noqa: PLC0415 - torch takes seconds to import
    from heed.interpret.head_statistics import batches, head_statistics  # noqa: PLC0415

    text_model, translator = open_any(model)
    ids, written = _sides(text_model, translator, sources, targets)
    work = batches(text_model.model, ids, written)
    with typer.progressbar(work, label=f"looking at {len(sources):,} sentences", file=sys.stderr) as bar:
        found = head_statistics(text_model.model, bar)
    if as_json:
        told = [asdict(one) | {"description": one.description} for one in found]
        alone = text_model.config.kind != "encoder-decoder"
        targets_of = None if alone else "the model, by greedy search" if target is None else target
        typer.echo(json.dumps({"source": source, "target": targets_of, "sentences": len(ids), "heads": told}, indent=2))
    else:
        output_console().print(_table(found))


def _sides(
    text_model: "TextModel", translator: "Translator | None", sources: list[str], targets: list[str] | None
) -> "tuple[Sequence[Ids], Sequence[Ids]]":
    """What each side of the model reads; nothing where it has no such side."""
    from heed.text.labels import JoinedTexts  # noqa: PLC0415

    config, (of_source, of_target) = text_model.config, text_model.tokenizers
    nothing: list[tuple[int, ...]] = [()] * len(sources)
    if config.kind != "encoder-decoder" and targets is not None:
        raise InputError(f"--target is for a model that translates, and this one is {config.kind!r} alone")
    if not config.has_decoder:
        return (of_source if config.labels is None else JoinedTexts(of_source)).encode(sources), nothing
    if translator is None:
        return nothing, of_target.encode(sources)
    written = _own(translator, sources) if targets is None else of_target.encode(targets)
    return of_source.encode(sources), written


def _own(translator: "Translator", sources: list[str]) -> list[tuple[int, ...]]:
    typer.echo(f"translating {len(sources):,} sentences …", err=True)
    return [one.ids for one in translator.translate(sources, search=SearchConfig(beam=1), align=False)]


def _table(found: "list[HeadStatistics]") -> Table:
    from heed.interpret.head_statistics import COVERING, EVEN, HALF, SHARP  # noqa: PLC0415 - imports torch

    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("head", no_wrap=True)
    for heading in _COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("it is", no_wrap=True)
    for one, after in zip(found, (*found[1:], None), strict=True):
        numbers = asdict(one) | {"end": one.start if one.end is None else one.end}
        cells = (_shown(field, numbers[field]) for field in _COLUMNS.values())
        ends = after is None or after.path != one.path
        table.add_row(f"{one.path}.{one.head}", *cells, one.description, end_section=ends)
    table.caption = (
        "Means over tokens. bits: entropy. even: entropy by the most there could be. away: distance. prev, same, next: "
        "shares of the token before, of itself, of the one after. end: share of ⟨/s⟩; in decoder self-attention, of "
        "⟨s⟩. sharp: the largest share of a source word. cover: of the words that could have it, those that do. "
        f"A share of {HALF} names a head; alignment: sharp {SHARP} and cover {COVERING}; broad: even {EVEN}."
    )
    table.caption_justify = "left"
    return table


def _shown(field: str, number: float | None) -> str:
    if number is None:
        return ""
    return f"{number:.1f}" if field == "distance" else f"{number:.2f}"
