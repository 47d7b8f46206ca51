"""`heed evaluate`: scores a system with confidence intervals and signatures, and compares two systems.

Enters: a model folder or a file of translations with references; a language model with texts; a classifier with labels
and texts. Leaves: tables or one JSON object on standard output, and the scores in the model's card.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from heed.cli import options
from heed.cli.evaluate_tasks import evaluate_task
from heed.cli.options import (
    EnsembleOption,
    SplitOption,
    TranslateSetOption,
    decoding_settings,
    open_translator,
    out_option,
)
from heed.cli.output import (
    TranslationCounts,
    TranslationProgress,
    interval_table,
    metric_label,
    output_console,
    print_notes,
    score_table,
    scores_as_json,
    signature_table,
    write_card,
)
from heed.errors import DataError
from heed.evaluation.repetition import repeats_itself
from heed.text.corpus import display_name, read_lines
from heed.training.corpora import PairFileOptions

if TYPE_CHECKING:
    from heed.evaluation.metrics import Comparison, Disagreement, Score
    from heed.inference.translator import Translator

AgainstOption = Annotated[
    str | None, typer.Option(help="File of another system's translations, to compare with by a paired bootstrap test.")
]
TokenizeOption = Annotated[
    str,
    typer.Option(
        help="sacreBLEU's tokenizer for BLEU, such as 13a, intl, zh or char; none: the text is already tokenised."
    ),
]
Lines = dict[str, list[str]]  # by "source", "reference", "hypothesis" and "against"


def evaluate(
    model: Annotated[Path | None, typer.Argument(help="Model folder to evaluate.")] = None,
    reference: Annotated[str | None, typer.Option(help="Reference translations, one per line.")] = None,
    text: Annotated[str | None, typer.Option(help="Test set of a language model, one text per line.")] = None,
    pairs: Annotated[str | None, typer.Option(help="Test set of a classifier: .tsv, .csv or .jsonl.")] = None,
    columns: options.ColumnsOption = None,
    pairs_format: options.PairsFormatOption = None,
    source_key: Annotated[str, typer.Option(help="Key of the text in a .jsonl object of --pairs.")] = "text",
    target_key: Annotated[str, typer.Option(help="Key of the label in a .jsonl object of --pairs.")] = "label",
    source: Annotated[
        str | None, typer.Option(help="Source text, one sentence per line; with --hypothesis it is only shown.")
    ] = None,
    hypothesis: Annotated[str | None, typer.Option(help="File of translations to score, instead of a model's.")] = None,
    against: AgainstOption = None,
    tokenize: TokenizeOption = "13a",
    resamples: Annotated[int, typer.Option(min=40, help="Bootstrap resamples for intervals and p-values.")] = 1000,
    show: Annotated[
        int, typer.Option(min=0, help="Number of sentences to print: those in which --against differs most.")
    ] = 5,
    out: Annotated[Path | None, out_option("File to write the model's translations to.")] = None,
    ensemble: EnsembleOption = [],
    split: SplitOption = None,
    set_: TranslateSetOption = [],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    card: Annotated[
        bool, typer.Option(help="Write the scores into the model card, README.md in the model folder.")
    ] = True,
) -> None:
    """Score translations with BLEU, chrF, TER, exact match and error rate, with confidence intervals.

    A language model with --text gets perplexity and bits per byte, a classifier with --pairs accuracy and macro-F1. All
    scores come with 95 % intervals and sacreBLEU-style signatures, and are written into the model's card.
    """
    paths = {"source": source, "reference": reference, "hypothesis": hypothesis, "against": against}
    files = {name: path for name, path in paths.items() if path is not None}
    if text is not None or pairs is not None:
        reading = PairFileOptions(source_key, target_key, columns, pairs_format)
        evaluate_task(model, text, pairs, reading, files, resamples, as_json=as_json, card=card)
        return
    search, settings = decoding_settings(set_, split)
    _check_options(model, files, out, settings | search)
    lines = _read(files)
    _check_tokenizer(tokenize, lines["reference"])
    counts: dict[str, int] = {}
    if model is not None:
        translator = open_translator(model, ensemble, search, engine=None, translate=settings)
        lines["hypothesis"], counts = _translated(translator, lines["source"], by_default=split is None)
        if out is not None:
            out.write_text("".join(f"{line}\n" for line in lines["hypothesis"]), encoding="utf-8")
    counts["repetitive"] = _count_repetitive(lines)
    result = _score(lines, tokenize, resamples, show)
    if as_json:
        inputs = {"model": None if model is None else str(model), **paths}
        typer.echo(json.dumps(inputs | counts | result.as_json(lines), indent=2, ensure_ascii=False))
    else:
        result.print_tables(_titles(model, files, lines), lines)
    if model is not None and card and not ensemble:  # an ensemble's score is not the model's
        test_set = " + ".join(Path(display_name(files[name])).name for name in ("source", "reference"))
        decoding = ", ".join(f"{name}={value}" for name, value in sorted((search | settings).items()))
        write_card(model, test_set, (lines["source"], lines["reference"]), result.scores, decoding)


def _check_options(model: Path | None, files: Mapping[str, str], out: Path | None, settings: dict[str, Any]) -> None:
    """Report mistakes in the options before a model translates for minutes."""
    if "reference" not in files:
        raise DataError("no reference: expected --reference, --text or --pairs")
    if (model is None) == ("hypothesis" not in files):
        inputs = "neither" if model is None else f"both {model} and {files['hypothesis']}"
        raise DataError(f"expected a model folder, or --hypothesis with translations to score: found {inputs}")
    if model is not None and "source" not in files:
        raise DataError(f"{model} needs source text to translate: expected --source")
    if model is None and (out is not None or settings):
        raise DataError("--out and --set need a model folder that translates: --hypothesis is a file of translations")
    if out is not None:
        for name, path in files.items():
            if out.resolve() == Path(path).resolve():
                raise DataError(f"--out {out} would overwrite --{name}: choose another name")
        try:
            out.open("ab").close()
        except OSError as error:
            raise DataError(f"{out}: cannot be written: {error.strerror}") from None


def _read(files: Mapping[str, str]) -> Lines:
    if (dashes := list(files.values()).count("-")) > 1:
        raise DataError(f"standard input (-) is given {dashes} times and can be read only once")
    lines = {name: list(read_lines(path)) for name, path in files.items()}
    count = len(lines["reference"])
    if count == 0:
        raise DataError(f"{display_name(files['reference'])} is empty: expected reference translations")
    for name, path in files.items():
        if len(lines[name]) != count:
            raise DataError(
                f"{display_name(path)} has {len(lines[name])} lines and {display_name(files['reference'])} has "
                f"{count}: line n of one must belong to line n of the other"
            )
    return lines


def _check_tokenizer(tokenize: str, references: list[str]) -> None:
    """Reject an unknown tokenizer; print a note if it would tokenise text a second time."""
    from heed.evaluation.metrics import metrics  # noqa: PLC0415 - numpy takes a while to import

    metrics(tokenize)
    tokenised = sum(line.endswith(" .") for line in references)
    if tokenize != "none" and tokenised > len(references) / 2:
        typer.echo(
            f"note: {tokenised:,} of {len(references):,} references end in ' .', so the text seems to be tokenised "
            "already; papers compute BLEU on such text with --tokenize none",
            err=True,
        )


def _translated(translator: "Translator", sources: list[str], *, by_default: bool) -> tuple[list[str], dict[str, int]]:
    """The model's translations, each as one line, and how many were truncated, split, normalised or corrected."""
    typer.echo(f"translating {len(sources):,} sentences …", err=True)
    with TranslationProgress(len(sources)) as progress:
        translations = translator.translate(sources, align=False, report=partial(progress.update_batch, len(sources)))
    counts = TranslationCounts()
    counts.add(translations)
    print_notes(counts.notes(translator.search, by_default=by_default))
    lines = [" ".join(translation.text.splitlines()) for translation in translations]
    names = ("truncated", "split", "normalized", "corrected")
    return lines, {name: getattr(counts, name) for name in names}


def _count_repetitive(lines: Lines) -> int:
    """How many translations repeat themselves, unlike their references; prints a note if there are any."""
    repetitive = sum(map(repeats_itself, lines["hypothesis"], lines["reference"]))
    if repetitive:
        note = (
            f"{repetitive:,} of {len(lines['reference']):,} translations repeat the same words or letters, unlike "
            "their references; a lower search.length_penalty or search.no_repeat_ngram=4 may help"
        )
        print_notes([note])
    return repetitive


@dataclass(frozen=True)
class _Result:
    """Scores; with --against also the comparison of both systems and the sentences where they differ most."""

    scores: "list[Score]"
    comparisons: "list[Comparison]"
    disagreements: "list[Disagreement]"

    def as_json(self, lines: Lines) -> dict[str, Any]:
        result: dict[str, Any] = {"sentences": len(lines["reference"]), "scores": scores_as_json(self.scores)}
        if self.comparisons:
            others = scores_as_json([pair.other for pair in self.comparisons]).items()
            result["different_sentences"] = _different(lines)
            result["comparison"] = {
                name: {"against": other, "difference": pair.difference, "p_value": pair.p_value}
                for pair, (name, other) in zip(self.comparisons, others, strict=True)
            }
            result["furthest_apart"] = [
                {"line": disagreement.index + 1, "chrf2": disagreement.this, "against_chrf2": disagreement.other}
                | {name: texts[disagreement.index] for name, texts in lines.items()}
                for disagreement in self.disagreements
            ]
        return result

    def print_tables(self, titles: Table, lines: Lines) -> None:
        console = output_console()
        console.print(titles, self._comparison_table() if self.comparisons else interval_table(self.scores), sep="")
        sentences = (_disagreement(lines, disagreement) for disagreement in self.disagreements)
        console.print(signature_table(self.scores), *sentences, sep="\n")

    def _comparison_table(self) -> Table:
        table = score_table("this", "± 95 %", "other", "± 95 %", "difference", "p")
        table.caption = "p: sacreBLEU's paired bootstrap, one-sided\n"
        table.caption_justify = "left"
        for pair in self.comparisons:
            values = (number for score in (pair.this, pair.other) for number in (score.value, score.half_width))
            numbers = (f"{number:.2f}" for number in values)
            table.add_row(metric_label(pair.this), *numbers, f"{pair.difference:+.2f}", f"{pair.p_value:.3f}")
        return table


def _score(lines: Lines, tokenize: str, resamples: int, show: int) -> _Result:
    from heed.evaluation.metrics import (  # noqa: PLC0415 - numpy takes a while to import
        compare,
        disagreements,
        score,
    )

    if "against" not in lines:
        return _Result(score(lines["hypothesis"], lines["reference"], tokenize, resamples), [], [])
    texts = (lines["hypothesis"], lines["against"], lines["reference"])
    comparisons = compare(*texts, tokenize, resamples)
    return _Result([comparison.this for comparison in comparisons], comparisons, disagreements(*texts, show))


def _different(lines: Lines) -> int:
    return sum(this != other for this, other in zip(lines["hypothesis"], lines["against"], strict=True))


def _titles(model: Path | None, files: Mapping[str, str], lines: Lines) -> Table:
    titles = Table.grid(padding=(0, 2))
    titles.add_row("reference", Text(f"{display_name(files['reference'])}, {len(lines['reference']):,} sentences"))
    titles.add_row("this", Text(display_name(files.get("hypothesis", str(model)))))
    if "against" in files:
        titles.add_row("other", Text(f"{display_name(files['against'])}, {_different(lines):,} sentences differ"))
    return titles


def _disagreement(lines: Lines, disagreement: "Disagreement") -> Group:
    texts = Table.grid(padding=(0, 2))
    titles = {"source": "source", "reference": "reference", "hypothesis": "this", "against": "other"}
    for name, title in titles.items():
        if name in lines:
            texts.add_row(title, Text(lines[name][disagreement.index]))
    heading = (
        f"\nline {disagreement.index + 1:,}: chrF2 {disagreement.this:.1f} (this), {disagreement.other:.1f} (other)"
    )
    return Group(Text(heading), texts)
