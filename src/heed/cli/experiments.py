"""`heed ablate`, `heads` and `pronouns`: ablation study, attention-head statistics and pronoun resolution."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich import box
from rich.table import Table

from heed.cli.options import SearchSetOption, open_translator, out_option, search_settings
from heed.cli.output import output_console
from heed.errors import ConfigError, DataError, InputError
from heed.text.corpus import Corpus, read_lines, read_pairs

if TYPE_CHECKING:
    from heed.inference.translator import Translator
    from heed.interpret.ablation import Ablation, Change
    from heed.interpret.head_statistics import HeadStatistics
    from heed.interpret.pronouns import PronounResults, Rate
    from heed.interpret.tokens import TextModel


MetricName = Literal["log-prob", "exact", "bleu"]
_TITLES: dict[MetricName, str] = {"log-prob": "log-probability per token", "exact": "exact match", "bleu": "BLEU"}
_DIGITS: dict[MetricName, int] = {"log-prob": 4, "exact": 2, "bleu": 2}


def ablate(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    source: Annotated[str, typer.Option(help="Source text, one sentence per line.")],
    reference: Annotated[str, typer.Option(help="Reference translations, one per line.")],
    metric: Annotated[
        MetricName,
        typer.Option(
            help="log-prob: log-probability per token, fast; exact (exact match) and bleu translate the text for each "
            "ablation."
        ),
    ] = "log-prob",
    resamples: Annotated[int, typer.Option(min=40, help="Bootstrap resamples for the intervals.")] = 1000,
    out: Annotated[Path | None, out_option("Write a heat map: .svg, .png or .pdf.")] = None,
    set_: SearchSetOption = [],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Ablate each head, sub-layer and layer in turn and measure the change of a metric, with 95 % intervals."""
    search = search_settings(set_)
    if metric == "log-prob" and search:
        raise ConfigError("--set applies to decoding, and --metric log-prob does not decode: expected exact or bleu")
    _check_image_path(out)
    pairs = list(read_pairs(Corpus(source, reference)))
    if not pairs:
        raise DataError(f"{source} is empty: expected sentences to score")
    texts = [pair.source for pair in pairs], [pair.target for pair in pairs]

    from heed.inference.open import with_pytorch_modules  # noqa: PLC0415 - torch takes seconds to import
    from heed.interpret.ablation import ablate as measure  # noqa: PLC0415
    from heed.interpret.ablation import check, components  # noqa: PLC0415

    translator = with_pytorch_modules(open_translator(model, [], search))
    check(translator, *texts)
    parts = components(translator.model.config)
    with typer.progressbar(parts, label=f"ablating {len(parts)} parts", file=sys.stderr) as bar:
        ablation = measure(translator, *texts, metric, bar, resamples)
    if as_json:
        typer.echo(json.dumps(asdict(ablation), indent=2))
    else:
        output_console().print(_ablation_table(ablation))
    if out is not None:
        _write_heat_map(ablation, out)


def _check_image_path(out: Path | None) -> None:
    """Reject an image path that cannot be written before minutes of measuring."""
    if out is not None:
        from heed.plots.svg import image_format, render  # noqa: PLC0415 - numpy takes a while to import

        render('<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>', image_format(out))
        if not out.parent.is_dir():
            raise DataError(f"{out}: the folder {out.parent} does not exist")


def _ablation_table(ablation: "Ablation") -> Table:
    title, digits = _TITLES[ablation.metric], _DIGITS[ablation.metric]
    table = Table(box=box.SIMPLE_HEAD, title=f"{title}, {ablation.sentences:,} sentences", title_justify="left")
    table.add_column("ablated", no_wrap=True)
    for heading in ("score", "change", "95 % interval"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_row("nothing", f"{ablation.whole:.{digits}f}", "", "", end_section=True)
    for change, after in zip(ablation.changes, (*ablation.changes[1:], None), strict=True):
        table.add_row(*_cells(change, digits), end_section=after is None or after.piece.group != change.piece.group)
    table.caption = "*: in every layer; the fourth component is the head; intervals: paired bootstrap"
    table.caption_justify = "left"
    return table


def _cells(change: "Change", digits: int) -> list[str]:
    interval = f"{change.low:+.{digits}f} to {change.high:+.{digits}f}"
    return [change.piece.name, f"{change.value:.{digits}f}", f"{change.change:+.{digits}f}", interval]


def _write_heat_map(ablation: "Ablation", out: Path) -> None:
    from heed.plots.figures import signed_heat_map  # noqa: PLC0415 - numpy takes a while to import
    from heed.plots.svg import image_format, render  # noqa: PLC0415

    changes, rows = ablation.head_changes()
    columns = [f"head.{number}" for number in range(1, changes.shape[1] + 1)]
    picture = signed_heat_map(changes, rows, columns, f"change of {_TITLES[ablation.metric]} without one head")
    try:
        out.write_bytes(render(picture, image_format(out)))
    except OSError as error:
        raise DataError(f"{out}: {error.strerror}") from None
    typer.echo(f"heat map written to {out}", err=True)


_COLUMNS = {  # heading: field
    "bits": "entropy",
    "even": "evenness",
    "dist": "distance",
    "prev": "previous",
    "same": "same",
    "next": "next",
    "end": "end",
    "sharp": "sharpness",
    "cover": "coverage",
}


def heads(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    source: Annotated[str, typer.Option(help="Source text, or other text for the model, one sentence per line.")],
    target: Annotated[str | None, typer.Option(help="Translations; default: the model's greedy ones.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Measure what each attention head attends to, and classify it: previous token, alignment, broad, …"""
    if target is None:
        sources, targets = list(read_lines(source)), None
    else:
        pairs = list(read_pairs(Corpus(source, target)))
        sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    if not sources:
        raise DataError(f"{source} is empty: expected sentences")

    from heed.inference.open import load_text_model  # noqa: PLC0415 - torch takes seconds to import
    from heed.interpret.head_statistics import batches, head_statistics  # noqa: PLC0415

    text_model, translator = load_text_model(model)
    source_ids, target_ids = _encode(text_model, translator, sources, targets)
    work = batches(text_model.model, source_ids, target_ids)
    with typer.progressbar(work, label=f"measuring {len(sources):,} sentences", file=sys.stderr) as bar:
        statistics = head_statistics(text_model.model, bar)
    if as_json:
        rows = [asdict(head) | {"description": head.description} for head in statistics]
        translates = text_model.config.kind == "encoder-decoder"
        target = (target or "the model, by greedy search") if translates else None
        document = {"source": source, "target": target, "sentences": len(source_ids), "heads": rows}
        typer.echo(json.dumps(document, indent=2))
    else:
        output_console().print(_head_table(statistics))


def _encode(
    text_model: "TextModel", translator: "Translator | None", sources: list[str], targets: list[str] | None
) -> "tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]]":
    """The token ids for the encoder and for the decoder; empty for one that the model does not have."""
    from heed.text.labels import TextPairEncoder  # noqa: PLC0415

    config, (source_tokenizer, target_tokenizer) = text_model.config, text_model.tokenizers
    empty: list[tuple[int, ...]] = [()] * len(sources)
    if config.kind != "encoder-decoder" and targets is not None:
        raise InputError(f"--target needs an encoder-decoder model: this one is {config.kind}-only")
    if not config.has_decoder:
        tokenizer = source_tokenizer if config.labels is None else TextPairEncoder(source_tokenizer)
        return tokenizer.encode(sources), empty
    if translator is None:
        return empty, target_tokenizer.encode(sources)
    source_ids = source_tokenizer.encode(sources)
    if targets is not None:
        return source_ids, target_tokenizer.encode(targets)
    typer.echo(f"translating {len(sources):,} sentences …", err=True)
    translations = translator.translate(sources, search=translator.search.greedy(), align=False)
    return source_ids, [translation.ids for translation in translations]


def _head_table(statistics: "list[HeadStatistics]") -> Table:
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
    table.add_column("type", no_wrap=True)
    for head, after in zip(statistics, (*statistics[1:], None), strict=True):
        numbers = asdict(head) | {"end": head.start if head.end is None else head.end}
        cells = (_cell(field, numbers[field]) for field in _COLUMNS.values())
        ends = after is None or after.path != head.path
        table.add_row(f"{head.path}.{head.head}", *cells, head.description, end_section=ends)
    table.caption = (
        "Means over query tokens. bits: entropy of the weights. even: entropy / maximum entropy. dist: distance to the "
        "key. prev, same, next: weight on the previous token, itself, the next token. end: weight on ⟨/s⟩; in decoder "
        "self-attention, on ⟨s⟩. sharp: largest weight on a source token. cover: different source tokens that have "
        f"it / their maximum. type: previous, same, next, end from a weight of {DOMINANT_WEIGHT}; alignment from sharp "
        f"{ALIGNMENT_SHARPNESS} and cover {ALIGNMENT_COVERAGE}; broad from even {BROAD_EVENNESS}."
    )
    table.caption_justify = "left"
    return table


def _cell(field: str, number: float | None) -> str:
    if number is None:
        return ""
    return f"{number:.1f}" if field == "distance" else f"{number:.2f}"


def pronouns(
    model: Annotated[Path, typer.Argument(help="An English-French model folder, such as the demo's.")],
    sentences: Annotated[int, typer.Option(min=2, max=20_000, help="Number of sentences; even.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the sentences and of the untrained model.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Measure what `it` attends to and which source words the choice of il or elle depends on.

    The sentences are from the test set of the built-in corpus; an untrained model is the baseline.
    """
    from heed.interpret.pronouns import measure_pronouns  # noqa: PLC0415 - torch takes seconds to import
    from heed.interpret.tokens import TextModel  # noqa: PLC0415

    translator = open_translator(model, [], {})
    typer.echo(f"measuring {sentences:,} sentences …", err=True)
    case = measure_pronouns(TextModel(translator.model, translator.tokenizers), sentences, seed)
    if as_json:
        typer.echo(json.dumps(asdict(case), indent=2))
    else:
        output_console().print(*tables(case), sep="\n")


def tables(case: "PronounResults") -> list[Table]:
    """The three tables of `heed pronouns`, at most 80 columns wide."""
    return [_encoder_table(case), _cross_attention_table(case), _removal_table(case)]


def _encoder_table(case: "PronounResults") -> Table:
    table = _pronoun_table(
        f"Share of {case.sentences:,} sentences with more weight on the antecedent",
        ("query, head", "trained", "95 % interval", "untrained", "antecedent", "other"),
        "Encoder self-attention. More weight on the antecedent of `it` than on the other noun; chance is 50 %. "
        "antecedent, other: mean weights on the two nouns, trained model.",
    )
    for head, after in zip(case.findings, (*case.findings[1:], None), strict=True):
        weights = (f"{weight:.3f}" for weight in (head.on_antecedent, head.on_other))
        cells = (*_rate(head.trained), f"{head.untrained.share:.1%}", *weights)
        ends = after is None or after.looker != head.looker
        table.add_row(f"{head.looker} {head.layer}.{head.head}", *cells, end_section=ends)
    return table


def _cross_attention_table(case: "PronounResults") -> Table:
    words = ("it", "antecedent", "other", "adjective")
    table = _pronoun_table("Mean weight on each source word when il or elle is predicted", ("cross head", *words))
    for head in case.glances:
        table.add_row(f"{head.layer}.{head.head}", *(f"{getattr(head, word):.3f}" for word in words))
    return table


def _removal_table(case: "PronounResults") -> Table:
    table = _pronoun_table(
        "Accuracy of the pronoun when a source word is removed",
        ("removed", "forced", "95 % interval", "decoded", "95 % interval"),
        "forced: il or elle, whichever is more probable after the reference prefix. decoded: the pronoun in the "
        "model's translation of the remaining words.",
    )
    for removal in case.removals:
        table.add_row(removal.removed, *_rate(removal.forced), *_rate(removal.written))
    return table


def _rate(rate: "Rate") -> tuple[str, str]:
    return f"{rate.share:.1%}", f"{rate.low:.1%} to {rate.high:.1%}"


def _pronoun_table(title: str, headings: tuple[str, ...], caption: str | None = None) -> Table:
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left", box=box.SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == headings[0] else "right", no_wrap=True)
    return table
