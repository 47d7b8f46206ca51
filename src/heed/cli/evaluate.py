"""`heed evaluate`: scores that can be quoted, of a model or of any translation; and is it better than another?"""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from heed.cli import texts as text_options
from heed.cli.evaluate_alone import evaluate_alone
from heed.cli.places import out_option
from heed.cli.progress import TranslationProgress
from heed.cli.scores import as_numbers, metric, score_table, scored, signatures, write_card
from heed.cli.searching import Set, SplitAt, Together, Translated, open_translator, say, search_settings
from heed.cli.tables import output_console
from heed.config import TranslateConfig
from heed.errors import DataError
from heed.text.corpus import read_lines

if TYPE_CHECKING:
    from heed.evaluation.compare import Comparison, Disagreement
    from heed.evaluation.metrics import Score
    from heed.inference.translator import Translator

Lines = dict[str, list[str]]  # what each of source, reference, hypothesis and against says


def evaluate(
    model: Annotated[Path | None, typer.Argument(help="A model folder, to translate --source with.")] = None,
    reference: Annotated[str | None, typer.Option(help="The translations to compare with, a sentence a line.")] = None,
    text: Annotated[str | None, typer.Option(help="Texts that a language model is to find likely.")] = None,
    pairs: Annotated[str | None, typer.Option(help="Labels and texts, .tsv, .csv or .jsonl, for a classifier.")] = None,
    columns: text_options.Columns = None,
    pairs_format: text_options.PairsFormat = None,
    source_key: text_options.SourceKey = "text",
    target_key: text_options.TargetKey = "label",
    source: Annotated[str | None, typer.Option(help="What is translated; beside --hypothesis, only shown.")] = None,
    hypothesis: Annotated[str | None, typer.Option(help="Translations to score, instead of a model's.")] = None,
    against: Annotated[str | None, typer.Option(help="Another system's translations, to compare with.")] = None,
    tokenize: Annotated[str, typer.Option(help="BLEU's tokenizer, one of sacreBLEU's; none: tokenised text.")] = "13a",
    resamples: Annotated[int, typer.Option(min=40, help="Test sets drawn for intervals and p-values.")] = 1000,
    show: Annotated[int, typer.Option(min=0, help="Sentences shown where --against differs most.")] = 5,
    out: Annotated[Path | None, out_option("Where to write the model's translations.")] = None,
    together: Together = [],
    split: SplitAt = None,
    set_: Set = [],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    card: Annotated[bool, typer.Option(help="Write the scores into the model's card.")] = True,
) -> None:
    """Score translations: BLEU, chrF, TER, exact match and error rate, with 95 % intervals and signatures.

    Of a language model and --text: perplexity and bits per byte. Of a classifier and --pairs: accuracy and macro-F1.
    """
    if text is not None or pairs is not None:
        given_too = {"--reference": reference, "--source": source, "--hypothesis": hypothesis, "--against": against}
        reading = text_options.Reading(source_key, target_key, columns, pairs_format)
        labels = None if pairs is None else replace(reading.corpora([pairs])[0], labelled=True)
        evaluate_alone(model, text, labels, given_too, resamples, as_json=as_json, card=card)
        return
    if reference is None:
        raise DataError("there is nothing to compare with: give --reference, or --text, or --pairs")
    search = search_settings(set_)
    given = {"source": source, "reference": reference, "hypothesis": hypothesis, "against": against}
    files = {name: path for name, path in given.items() if path is not None}
    _check_form(model, files, out, search)
    lines = _read(files)

    from heed.evaluation.compare import compare, disagreements  # noqa: PLC0415 - numpy takes a while to import
    from heed.evaluation.metrics import metrics, score  # noqa: PLC0415

    metrics(tokenize)  # refuses what it cannot do before a model translates for minutes
    _note_tokenised(lines["reference"], tokenize)
    if model is not None:
        counted = Translated()
        translator = open_translator(model, together, search, engine=None)
        if split is not None:
            translator.settings = TranslateConfig(split=split)
        lines["hypothesis"] = _translated(translator, lines["source"], counted)
        say(counted.notes(translator.search, by_default=split is None))
        if out is not None:
            out.write_text("".join(f"{line}\n" for line in lines["hypothesis"]), encoding="utf-8")
    comparisons: list[Comparison] = []
    apart: list[Disagreement] = []
    if against is None:
        scores = score(lines["hypothesis"], lines["reference"], tokenize, resamples)
    else:
        texts = (lines["hypothesis"], lines["against"], lines["reference"])
        comparisons, apart = compare(*texts, tokenize, resamples), disagreements(*texts, show)
        scores = [comparison.this for comparison in comparisons]
    if as_json:
        told: dict[str, Any] = {"model": None if model is None else str(model), **given}
        if model is not None:
            told |= {"truncated": counted.truncated, "split": counted.split}
        typer.echo(json.dumps(told | _as_json(lines, scores, comparisons, apart), indent=2, ensure_ascii=False))
    else:
        console = output_console()
        console.print(_titles(model, files, lines), _compared(comparisons) if comparisons else scored(scores), sep="")
        console.print(signatures(scores), *(_sentence(lines, one) for one in apart), sep="\n")
    if model is not None and card and not together:  # what several reach is no score of one
        test_set = " + ".join(Path(_spoken(files[name])).name for name in ("source", "reference"))
        how = ", ".join(f"{name}={value}" for name, value in sorted(search.items()))
        write_card(model, test_set, (lines["source"], lines["reference"]), scores, how)


def _check_form(model: Path | None, files: dict[str, str], out: Path | None, search: dict[str, Any]) -> None:
    """Find mistakes in what was asked for before a model translates for minutes."""
    if (model is None) == ("hypothesis" not in files):
        found = "neither" if model is None else f"both {model} and {files['hypothesis']}"
        raise DataError(f"give a model folder to translate with, or --hypothesis to score: found {found}")
    if model is not None and "source" not in files:
        raise DataError(f"{model} needs something to translate: give --source")
    if model is None and (out is not None or search):
        raise DataError("--out and --set are for a model that translates, but --hypothesis is a translation")
    if out is not None:
        for name, path in files.items():
            if out.resolve() == Path(path).resolve():
                raise DataError(f"--out {out} would overwrite --{name}: choose another name")
        try:
            out.open("ab").close()
        except OSError as error:
            raise DataError(f"{out}: cannot be written: {error.strerror}") from None


def _read(files: dict[str, str]) -> Lines:
    if list(files.values()).count("-") > 1:
        raise DataError("standard input (-) was asked for more than once, and can be read only once")
    lines = {name: list(read_lines(path)) for name, path in files.items()}
    count = len(lines["reference"])
    if count == 0:
        raise DataError(f"{_spoken(files['reference'])} is empty: there is nothing to score against")
    for name, path in files.items():
        if len(lines[name]) != count:
            raise DataError(
                f"{_spoken(path)} has {len(lines[name])} lines and {_spoken(files['reference'])} has {count}: "
                "line n of one must belong to line n of the other"
            )
    return lines


def _spoken(path: str) -> str:
    return "standard input" if path == "-" else path


def _note_tokenised(references: list[str], tokenize: str) -> None:
    """Papers tokenise once; whoever lets 13a do it again gets a figure that compares with none of theirs."""
    tokenised = sum(line.endswith(" .") for line in references)
    if tokenize != "none" and tokenised > len(references) / 2:
        typer.echo(
            f"note: {tokenised:,} of {len(references):,} references end in ' .', as tokenised text does; "
            "the BLEU of papers on such text is --tokenize none",
            err=True,
        )


def _translated(translator: "Translator", sources: list[str], counted: Translated) -> list[str]:
    """The model's translations."""
    typer.echo(f"translating {len(sources):,} sentences …", err=True)
    with TranslationProgress(len(sources)) as progress:
        found = translator.translate(sources, align=False, report=partial(progress.within, len(sources)))
    counted.add(found)
    # A model may have learnt to write line ends; here, as for `heed translate`, a translation is one line.
    return [" ".join(one.text.splitlines()) for one in found]


def _as_json(
    lines: Lines, scores: "list[Score]", comparisons: "list[Comparison]", apart: "list[Disagreement]"
) -> dict[str, Any]:
    found: dict[str, Any] = {"sentences": len(lines["reference"]), "scores": as_numbers(scores)}
    if comparisons:
        found["different_sentences"] = _different(lines)
        found["comparison"] = {
            name: {"against": other, "difference": one.difference, "p_value": one.p_value}
            for one, (name, other) in zip(
                comparisons, as_numbers([one.other for one in comparisons]).items(), strict=True
            )
        }
        found["furthest_apart"] = [
            {"line": one.place + 1, "chrf2": one.this, "against_chrf2": one.other}
            | {name: texts[one.place] for name, texts in lines.items()}
            for one in apart
        ]
    return found


def _different(lines: Lines) -> int:
    return sum(one != other for one, other in zip(lines["hypothesis"], lines["against"], strict=True))


def _titles(model: Path | None, files: dict[str, str], lines: Lines) -> Table:
    titles = Table.grid(padding=(0, 2))
    titles.add_row("reference", Text(f"{_spoken(files['reference'])}, {len(lines['reference']):,} sentences"))
    titles.add_row("this", Text(_spoken(files.get("hypothesis", str(model)))))
    if "against" in files:
        titles.add_row("other", Text(f"{_spoken(files['against'])}, different in {_different(lines):,} of them"))
    return titles


def _compared(comparisons: "list[Comparison]") -> Table:
    table = score_table("this", "± 95 %", "other", "± 95 %", "differs", "p")
    table.caption = "p: sacreBLEU's paired bootstrap, one-sided\n"
    table.caption_justify = "left"
    for one in comparisons:
        both = (number for score in (one.this, one.other) for number in (score.value, score.half_width))
        numbers = (f"{number:.2f}" for number in both)
        table.add_row(metric(one.this), *numbers, f"{one.difference:+.2f}", f"{one.p_value:.3f}")
    return table


def _sentence(lines: Lines, one: "Disagreement") -> Group:
    texts = Table.grid(padding=(0, 2))
    titles = {"source": "source", "reference": "reference", "hypothesis": "this", "against": "other"}
    for name, title in titles.items():
        if name in lines:
            texts.add_row(title, Text(lines[name][one.place]))
    return Group(Text(f"\nline {one.place + 1:,}: chrF2 of this {one.this:.1f}, of other {one.other:.1f}"), texts)
