"""`heed evaluate`: scores that can be quoted, with intervals and signatures; and is a system better than another?

Enters: a model folder or a file of translations with references; a language model with texts; a classifier with labels
and texts. Leaves: tables or one JSON object on standard output, and the scores in the model's card.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from heed.cli import options
from heed.cli.options import SearchSet, SplitAt, Together, open_translator, out_option, search_settings
from heed.cli.output import (
    Translated,
    TranslationProgress,
    as_numbers,
    metric,
    output_console,
    say,
    score_table,
    scored,
    signatures,
    write_card,
)
from heed.config import SplitMode, TranslateConfig
from heed.errors import DataError
from heed.text.corpus import Corpus, read_lines, read_pairs
from heed.training.corpora import PairFileOptions

if TYPE_CHECKING:
    from heed.evaluation.metrics import Comparison, Disagreement, Score
    from heed.inference.translator import Translator

Lines = dict[str, list[str]]  # of each of source, reference, hypothesis and against
_MOST_LABELS = 20  # whose confusion matrix fits a screen


def evaluate(
    model: Annotated[Path | None, typer.Argument(help="A model folder, to translate --source with.")] = None,
    reference: Annotated[str | None, typer.Option(help="The reference translations, one per line.")] = None,
    text: Annotated[str | None, typer.Option(help="Texts to compute a language model's perplexity on.")] = None,
    pairs: Annotated[str | None, typer.Option(help="Labels and texts, .tsv, .csv or .jsonl, for a classifier.")] = None,
    columns: options.Columns = None,
    pairs_format: options.PairsFormat = None,
    source_key: options.SourceKey = "text",
    target_key: options.TargetKey = "label",
    source: Annotated[str | None, typer.Option(help="The source; with --hypothesis it is only shown.")] = None,
    hypothesis: Annotated[str | None, typer.Option(help="Translations to score, instead of a model's.")] = None,
    against: Annotated[str | None, typer.Option(help="Another system's translations, to compare with.")] = None,
    tokenize: Annotated[str, typer.Option(help="BLEU's tokenizer, one of sacreBLEU's; none: tokenised text.")] = "13a",
    resamples: Annotated[int, typer.Option(min=40, help="Bootstrap resamples for intervals and p-values.")] = 1000,
    show: Annotated[int, typer.Option(min=0, help="Sentences shown where --against differs most.")] = 5,
    out: Annotated[Path | None, out_option("Where to write the model's translations.")] = None,
    together: Together = [],
    split: SplitAt = None,
    set_: SearchSet = [],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    card: Annotated[bool, typer.Option(help="Write the scores into the model's card.")] = True,
) -> None:
    """Score translations: BLEU, chrF, TER, exact match and error rate, with 95 % intervals and signatures.

    Of a language model and --text: perplexity and bits per byte. Of a classifier and --pairs: accuracy and macro-F1.
    """
    given = {"source": source, "reference": reference, "hypothesis": hypothesis, "against": against}
    files = {name: path for name, path in given.items() if path is not None}
    if text is not None or pairs is not None:
        reading = PairFileOptions(source_key, target_key, columns, pairs_format)
        labelled = None if pairs is None else replace(reading.corpora([pairs])[0], labelled=True)
        _evaluate_task(model, text, labelled, files, resamples, as_json=as_json, card=card)
        return
    search = search_settings(set_)
    _check_form(model, files, out, search)
    lines = _read(files)
    _check_tokenizer(tokenize, lines["reference"])
    counts: dict[str, int] = {}
    if model is not None:
        translator = open_translator(model, together, search, engine=None)
        lines["hypothesis"], counts = _translated(translator, lines["source"], split)
        if out is not None:
            out.write_text("".join(f"{line}\n" for line in lines["hypothesis"]), encoding="utf-8")
    result = _score(lines, tokenize, resamples, show)
    if as_json:
        names = {"model": None if model is None else str(model), **given}
        typer.echo(json.dumps(names | counts | result.as_json(lines), indent=2, ensure_ascii=False))
    else:
        result.print_tables(_titles(model, files, lines), lines)
    if model is not None and card and not together:  # what several reach together is no score of one
        test_set = " + ".join(Path(_spoken(files[name])).name for name in ("source", "reference"))
        how = ", ".join(f"{name}={value}" for name, value in sorted(search.items()))
        write_card(model, test_set, (lines["source"], lines["reference"]), result.scores, how)


def _check_form(model: Path | None, files: Mapping[str, str], out: Path | None, search: dict[str, Any]) -> None:
    """Find mistakes in the options before a model translates for minutes."""
    if "reference" not in files:
        raise DataError("there is nothing to compare with: give --reference, or --text, or --pairs")
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


def _read(files: Mapping[str, str]) -> Lines:
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


def _check_tokenizer(tokenize: str, references: list[str]) -> None:
    """Refuse an unknown tokenizer; note where 13a would tokenise a second time, which no paper's BLEU does."""
    from heed.evaluation.metrics import metrics  # noqa: PLC0415 - numpy takes a while to import

    metrics(tokenize)
    tokenised = sum(line.endswith(" .") for line in references)
    if tokenize != "none" and tokenised > len(references) / 2:
        typer.echo(
            f"note: {tokenised:,} of {len(references):,} references end in ' .', as tokenised text does; "
            "the BLEU of papers on such text is --tokenize none",
            err=True,
        )


def _translated(
    translator: "Translator", sources: list[str], split: SplitMode | None
) -> tuple[list[str], dict[str, int]]:
    """The model's translations, each as one line, and how many were truncated or translated in parts."""
    if split is not None:
        translator.settings = TranslateConfig(split=split)
    typer.echo(f"translating {len(sources):,} sentences …", err=True)
    with TranslationProgress(len(sources)) as progress:
        translations = translator.translate(sources, align=False, report=partial(progress.within, len(sources)))
    counted = Translated()
    counted.add(translations)
    say(counted.notes(translator.search, by_default=split is None))
    lines = [" ".join(translation.text.splitlines()) for translation in translations]
    return lines, {"truncated": counted.truncated, "split": counted.split}


@dataclass(frozen=True)
class _Result:
    """Scores; and, where there is another system, how both compare and where they differ most."""

    scores: "list[Score]"
    comparisons: "list[Comparison]"
    disagreements: "list[Disagreement]"

    def as_json(self, lines: Lines) -> dict[str, Any]:
        """The values for `--json`: scores, and of two systems the comparison and their sentences furthest apart."""
        result: dict[str, Any] = {"sentences": len(lines["reference"]), "scores": as_numbers(self.scores)}
        if self.comparisons:
            others = as_numbers([pair.other for pair in self.comparisons]).items()
            result["different_sentences"] = _different(lines)
            result["comparison"] = {
                name: {"against": other, "difference": pair.difference, "p_value": pair.p_value}
                for pair, (name, other) in zip(self.comparisons, others, strict=True)
            }
            result["furthest_apart"] = [
                {"line": apart.index + 1, "chrf2": apart.this, "against_chrf2": apart.other}
                | {name: texts[apart.index] for name, texts in lines.items()}
                for apart in self.disagreements
            ]
        return result

    def print_tables(self, titles: Table, lines: Lines) -> None:
        """Print scores or a comparison, then signatures and the sentences furthest apart."""
        console = output_console()
        console.print(titles, self._compared() if self.comparisons else scored(self.scores), sep="")
        sentences = (_sentence(lines, apart) for apart in self.disagreements)
        console.print(signatures(self.scores), *sentences, sep="\n")

    def _compared(self) -> Table:
        table = score_table("this", "± 95 %", "other", "± 95 %", "differs", "p")
        table.caption = "p: sacreBLEU's paired bootstrap, one-sided\n"
        table.caption_justify = "left"
        for pair in self.comparisons:
            both = (number for score in (pair.this, pair.other) for number in (score.value, score.half_width))
            numbers = (f"{number:.2f}" for number in both)
            table.add_row(metric(pair.this), *numbers, f"{pair.difference:+.2f}", f"{pair.p_value:.3f}")
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
    return sum(one != other for one, other in zip(lines["hypothesis"], lines["against"], strict=True))


def _titles(model: Path | None, files: Mapping[str, str], lines: Lines) -> Table:
    titles = Table.grid(padding=(0, 2))
    titles.add_row("reference", Text(f"{_spoken(files['reference'])}, {len(lines['reference']):,} sentences"))
    titles.add_row("this", Text(_spoken(files.get("hypothesis", str(model)))))
    if "against" in files:
        titles.add_row("other", Text(f"{_spoken(files['against'])}, different in {_different(lines):,} of them"))
    return titles


def _sentence(lines: Lines, apart: "Disagreement") -> Group:
    texts = Table.grid(padding=(0, 2))
    titles = {"source": "source", "reference": "reference", "hypothesis": "this", "against": "other"}
    for name, title in titles.items():
        if name in lines:
            texts.add_row(title, Text(lines[name][apart.index]))
    heading = f"\nline {apart.index + 1:,}: chrF2 of this {apart.this:.1f}, of other {apart.other:.1f}"
    return Group(Text(heading), texts)


def _evaluate_task(
    model: Path | None,
    text: str | None,
    labelled: Corpus | None,
    others: Mapping[str, str],
    resamples: int,
    *,
    as_json: bool,
    card: bool,
) -> None:
    """Score a language model on texts, or a classifier on labelled texts. others: files that are for neither."""
    useless = [f"--{name}" for name in others] + (["--pairs"] if text is not None and labelled is not None else [])
    if useless:
        raise DataError(f"{useless[0]} is of no use beside {'--text' if text is not None else '--pairs'}")
    if model is None:
        raise DataError("give a model folder to score")
    if labelled is not None:
        _evaluate_classifier(model, labelled, resamples, as_json=as_json, card=card)
    elif text is not None:
        _evaluate_language_model(model, text, resamples, as_json=as_json, card=card)


def _evaluate_language_model(model: Path, path: str, resamples: int, *, as_json: bool, card: bool) -> None:
    from heed.evaluation.task_metrics import language_model_scores  # noqa: PLC0415
    from heed.inference.generator import Generator  # noqa: PLC0415 - torch takes seconds to import

    texts = [line for line in read_lines(path) if line]
    log_probs = Generator.open(model).token_scores(texts)
    scores = language_model_scores([sum(one) for one in log_probs], [len(one) for one in log_probs], texts, resamples)
    _print_task(model, path, len(texts), scores, {}, as_json=as_json)
    if card:
        write_card(model, Path(path).name, (texts, []), scores)


def _evaluate_classifier(model: Path, corpus: Corpus, resamples: int, *, as_json: bool, card: bool) -> None:
    from heed.evaluation.task_metrics import classification_scores, confusion_matrix  # noqa: PLC0415
    from heed.inference.classifier import Classifier  # noqa: PLC0415 - torch takes seconds to import

    rows = list(read_pairs(corpus))
    labelled = [pair for pair in rows if pair.source and pair.target]
    if skipped := len(rows) - len(labelled):
        say([f"{skipped:,} of {len(rows):,} rows have no text or no label: not scored"])
    texts, labels = [pair.source for pair in labelled], [pair.target for pair in labelled]
    classifier = Classifier.open(model)
    predicted = [one.label for one in classifier.classify(texts)]
    scores = classification_scores(predicted, labels, classifier.labels, resamples)
    matrix = confusion_matrix(predicted, labels, classifier.labels).tolist()
    more = {"labels": list(classifier.labels), "confusion": matrix}
    _print_task(model, str(corpus.pairs), len(texts), scores, more, as_json=as_json)
    if not as_json and len(classifier.labels) <= _MOST_LABELS:
        table = _confusion(classifier.labels, matrix)
        output_console().print("\nrows: what is right; columns: what was said", table, sep="\n")
    if card:
        write_card(model, Path(str(corpus.pairs)).name, (texts, labels), scores)


def _print_task(
    model: Path, path: str, texts: int, scores: "list[Score]", more: dict[str, object], *, as_json: bool
) -> None:
    if as_json:
        shown = {"model": str(model), "test_set": path, "texts": texts, "scores": as_numbers(scores), **more}
        typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    table = scored(scores, digits=2 if more else 4)
    output_console().print(Text(f"{model} on {path}, {texts:,} texts"), table, signatures(scores), sep="\n")


def _confusion(labels: Sequence[str], matrix: Sequence[Sequence[int]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    for label in labels:
        table.add_column(Text(label), justify="right")
    for label, row in zip(labels, matrix, strict=True):
        table.add_row(Text(label), *(f"{count:,}" for count in row))
    return table
