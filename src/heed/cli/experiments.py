"""`heed ablate`, `heed heads` and `heed pronouns`: what parts of a model are for, measured."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich import box
from rich.table import Table

from heed.cli.options import SearchSet, open_translator, out_option, search_settings
from heed.cli.output import output_console
from heed.config import SearchConfig
from heed.errors import ConfigError, DataError, InputError
from heed.text.corpus import Corpus, read_lines, read_pairs

if TYPE_CHECKING:
    from heed.inference.translator import Translator
    from heed.interpret.ablation import Ablation, Change
    from heed.interpret.head_statistics import HeadStatistics
    from heed.interpret.pronouns import PronounCase, Rate
    from heed.interpret.tokens import TextModel


Metric = Literal["log-prob", "exact", "bleu"]
_TITLES: dict[Metric, str] = {"log-prob": "log-probability a token", "exact": "exact match", "bleu": "BLEU"}
_DIGITS: dict[Metric, int] = {"log-prob": 4, "exact": 2, "bleu": 2}


def ablate(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    source: Annotated[str, typer.Option(help="Source text, a sentence a line.")],
    reference: Annotated[str, typer.Option(help="Its translations, line by line.")],
    metric: Annotated[Metric, typer.Option(help="log-prob is quick; exact and bleu translate.")] = "log-prob",
    resamples: Annotated[int, typer.Option(min=40, help="Test sets drawn for the intervals.")] = 1000,
    out: Annotated[Path | None, out_option("A heat map: .svg, .png or .pdf.")] = None,
    set_: SearchSet = [],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Switch off each head, sub-layer and layer in turn, and tell what it costs, with 95 % intervals."""
    search = search_settings(set_)
    if metric == "log-prob" and search:
        raise ConfigError("--set is for a search, and --metric log-prob does not search: expected exact or bleu")
    _check_picture(out)
    pairs = list(read_pairs(Corpus(source, reference)))
    if not pairs:
        raise DataError(f"{source} is empty: there is nothing to score")
    texts = [pair.source for pair in pairs], [pair.target for pair in pairs]

    from heed.inference.open import with_pytorch_modules  # noqa: PLC0415 - torch takes seconds to import
    from heed.interpret.ablation import ablate as measure  # noqa: PLC0415
    from heed.interpret.ablation import check, components  # noqa: PLC0415

    translator = with_pytorch_modules(open_translator(model, [], search))
    check(translator, *texts)
    off = components(translator.model.config)
    with typer.progressbar(off, label=f"ablating {len(off)} components", file=sys.stderr) as bar:
        found = measure(translator, *texts, metric, bar, resamples)
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2))
    else:
        output_console().print(_ablation_table(found))
    if out is not None:
        _draw(found, out)


def _check_picture(out: Path | None) -> None:
    """A picture that cannot be drawn is refused before minutes are spent on it."""
    if out is not None:
        from heed.plots.svg import image_format, render  # noqa: PLC0415 - numpy takes a while to import

        render('<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>', image_format(out))
        if not out.parent.is_dir():
            raise DataError(f"{out}: there is no folder {out.parent}")


def _ablation_table(found: "Ablation") -> Table:
    title, digits = _TITLES[found.metric], _DIGITS[found.metric]
    table = Table(box=box.SIMPLE_HEAD, title=f"{title}, {found.sentences:,} sentences", title_justify="left")
    table.add_column("without", no_wrap=True)
    for heading in ("score", "change", "95 % interval"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_row("nothing", f"{found.whole:.{digits}f}", "", "", end_section=True)
    for one, after in zip(found.changes, (*found.changes[1:], None), strict=True):
        table.add_row(*_cells(one, digits), end_section=after is None or after.piece.group != one.piece.group)
    table.caption = "*: of every layer; a fourth part is a head's number; intervals: paired bootstrap"
    table.caption_justify = "left"
    return table


def _cells(one: "Change", digits: int) -> list[str]:
    interval = f"{one.low:+.{digits}f} to {one.high:+.{digits}f}"
    return [one.piece.name, f"{one.value:.{digits}f}", f"{one.change:+.{digits}f}", interval]


def _draw(found: "Ablation", out: Path) -> None:
    from heed.plots.figures import signed_heat_map  # noqa: PLC0415 - numpy takes a while to import
    from heed.plots.svg import image_format, render  # noqa: PLC0415

    changes, rows = found.head_changes()
    columns = [f"head.{number}" for number in range(1, changes.shape[1] + 1)]
    picture = signed_heat_map(changes, rows, columns, f"change of {_TITLES[found.metric]} without one head")
    try:
        out.write_bytes(render(picture, image_format(out)))
    except OSError as error:
        raise DataError(f"{out}: {error.strerror}") from None
    typer.echo(f"the heat map is in {out}", err=True)


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

    from heed.inference.open import load_text_model  # noqa: PLC0415 - torch takes seconds to import
    from heed.interpret.head_statistics import batches, head_statistics  # noqa: PLC0415

    text_model, translator = load_text_model(model)
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
        output_console().print(_head_table(found))


def _sides(
    text_model: "TextModel", translator: "Translator | None", sources: list[str], targets: list[str] | None
) -> tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]]:
    """What each side of the model reads; nothing where it has no such side."""
    from heed.text.labels import TextPairEncoder  # noqa: PLC0415

    config, (of_source, of_target) = text_model.config, text_model.tokenizers
    nothing: list[tuple[int, ...]] = [()] * len(sources)
    if config.kind != "encoder-decoder" and targets is not None:
        raise InputError(f"--target is for a model that translates, and this one is {config.kind!r} alone")
    if not config.has_decoder:
        return (of_source if config.labels is None else TextPairEncoder(of_source)).encode(sources), nothing
    if translator is None:
        return nothing, of_target.encode(sources)
    written = _own(translator, sources) if targets is None else of_target.encode(targets)
    return of_source.encode(sources), written


def _own(translator: "Translator", sources: list[str]) -> list[tuple[int, ...]]:
    typer.echo(f"translating {len(sources):,} sentences …", err=True)
    return [one.ids for one in translator.translate(sources, search=SearchConfig(beam=1), align=False)]


def _head_table(found: "list[HeadStatistics]") -> Table:
    from heed.interpret.head_statistics import (  # noqa: PLC0415 - imports torch
        ALIGNMENT_COVERAGE,
        ALIGNMENT_SHARPNESS,
        BROAD_EVENNESS,
        DOMINANT_WEIGHT,
    )

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
        f"A share of {DOMINANT_WEIGHT} names a head; alignment: sharp {ALIGNMENT_SHARPNESS} and cover "
        f"{ALIGNMENT_COVERAGE}; broad: even {BROAD_EVENNESS}."
    )
    table.caption_justify = "left"
    return table


def _shown(field: str, number: float | None) -> str:
    if number is None:
        return ""
    return f"{number:.1f}" if field == "distance" else f"{number:.2f}"


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
    table = _pronoun_table(
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
    table = _pronoun_table("Mean weight on each source word when il or elle is to be predicted", ("cross head", *words))
    for one in found.glances:
        table.add_row(f"{one.layer}.{one.head}", *(f"{getattr(one, word):.3f}" for word in words))
    return table


def _removals(found: "PronounCase") -> Table:
    table = _pronoun_table(
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


def _pronoun_table(title: str, headings: tuple[str, ...], caption: str | None = None) -> Table:
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left", box=box.SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == headings[0] else "right", no_wrap=True)
    return table
