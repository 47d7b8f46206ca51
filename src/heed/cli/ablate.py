"""`heed ablate`: what a model loses without each of its heads, sub-layers and layers."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich import box
from rich.table import Table

from heed.cli.options import SearchSet, open_translator, out_option, search_settings
from heed.cli.output import output_console
from heed.errors import ConfigError, DataError
from heed.text.corpus import Corpus, read_pairs

if TYPE_CHECKING:
    from heed.interpret.ablation import Ablation, Change

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

    from heed.inference.open import run_by_modules  # noqa: PLC0415 - torch takes seconds to import
    from heed.interpret.ablation import ablate as measure  # noqa: PLC0415
    from heed.interpret.ablation import check, pieces  # noqa: PLC0415

    translator = run_by_modules(open_translator(model, [], search))
    check(translator, *texts)
    off = pieces(translator.model.config)
    with typer.progressbar(off, label=f"switching off {len(off)} pieces", file=sys.stderr) as bar:
        found = measure(translator, *texts, metric, bar, resamples)
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2))
    else:
        output_console().print(_table(found))
    if out is not None:
        _draw(found, out)


def _check_picture(out: Path | None) -> None:
    """A picture that cannot be drawn is refused before minutes are spent on it."""
    if out is not None:
        from heed.plots.svg import kind_of, rendered  # noqa: PLC0415 - numpy takes a while to import

        rendered('<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>', kind_of(out))
        if not out.parent.is_dir():
            raise DataError(f"{out}: there is no folder {out.parent}")


def _table(found: "Ablation") -> Table:
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
    from heed.plots.figures import removal_map  # noqa: PLC0415 - numpy takes a while to import
    from heed.plots.svg import kind_of, rendered  # noqa: PLC0415

    changes, rows = found.of_heads()
    columns = [f"head.{number}" for number in range(1, changes.shape[1] + 1)]
    picture = removal_map(changes, rows, columns, f"change of {_TITLES[found.metric]} without one head")
    try:
        out.write_bytes(rendered(picture, kind_of(out)))
    except OSError as error:
        raise DataError(f"{out}: {error.strerror}") from None
    typer.echo(f"the heat map is in {out}", err=True)
