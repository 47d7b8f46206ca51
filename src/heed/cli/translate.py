"""`heed translate`: translates text line by line; `heed score`: prints the log-probabilities of given translations.

Enters: a model folder, and text lines, TSV rows or JSON objects from files, standard input or options. Leaves: the
translations in input order on standard output; notes and progress on standard error.
"""

import itertools
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from heed.cli.options import (
    EngineOption,
    EnsembleOption,
    SplitOption,
    TranslateSetOption,
    decoding_settings,
    open_translator,
)
from heed.cli.output import TranslationCounts, TranslationProgress, print_notes
from heed.decoding.alignment import word_alignment
from heed.errors import DataError, HeedError
from heed.text.corpus import Corpus, location, read_lines, read_pairs
from heed.text.rows import get_text, parse_object, read_members, write_members

if TYPE_CHECKING:
    from heed.inference.translation import Translation
    from heed.inference.translator import Translator

InputFormat = Literal["text", "tsv", "jsonl"]


@dataclass(frozen=True)
class _InputLine:
    """A text to translate, and the TSV row or JSON object that it is a part of."""

    text: str
    format: InputFormat
    columns: tuple[str, ...] = ()
    members: dict[str, str] | None = None  # of a JSON object, each value in its original spelling


@dataclass(frozen=True)
class _OutputOptions:
    """What to write for each line besides the best translation."""

    nbest: int
    scores: bool
    alignment: bool
    target_key: str


def translate(
    model: Annotated[Path, typer.Argument(help="A model folder, or one that heed export wrote for an engine.")],
    files: Annotated[
        list[str], typer.Argument(help="Files to translate, one text per line; default: standard input.")
    ] = [],
    text: Annotated[list[str], typer.Option(help="A text to translate; may be given several times.")] = [],
    ensemble: EnsembleOption = [],
    engine: EngineOption = None,
    format_: Annotated[
        InputFormat | None,
        typer.Option("--format", help="Input format; default: by the file name, else text."),
    ] = None,
    source_key: Annotated[str, typer.Option(help="Key of the text in a JSON object.")] = "source",
    target_key: Annotated[str, typer.Option(help="Key for the translation in a JSON object.")] = "target",
    beam: Annotated[
        int | None, typer.Option(help="Beam size; 1: greedy search; default: the model folder's setting.")
    ] = None,
    nbest: Annotated[
        int | None,
        typer.Option(help="Number of translations per input line, best first; default: the model folder's setting."),
    ] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Write each translation's score before it.")] = False,
    alignment: Annotated[
        bool,
        typer.Option(
            "--alignment",
            help="Write the word alignment after each translation, as pairs of source and target word: 0-0 1-2 …",
        ),
    ] = False,
    split: SplitOption = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print which backend translates, and why, on standard error.")
    ] = False,
    lines: Annotated[int, typer.Option(min=1, help="Lines per batch; 1: translate each line as it arrives.")] = 512,
    set_: TranslateSetOption = [],
) -> None:
    """Translate text from files, standard input or the command line, line by line.

    A line of several sentences is translated sentence by sentence, unless --split says otherwise. A TSV row gets the
    translation as an additional column, a JSON object as an additional key; the rest is unchanged. With --nbest above
    1, each output row starts with the number of its input line.
    """
    search, settings = decoding_settings(set_, split, beam, nbest)
    if text and files:
        raise DataError(f"expected --text or files to translate, not both: found --text and {files[0]}")
    translator = open_translator(model, ensemble, search, engine, settings)
    if verbose:
        print_notes([f"backend {translator.backend.choice}"])
    output = _OutputOptions(translator.search.nbest, scores, alignment, target_key)
    if not files and not text and sys.stdin.isatty():
        _translate_interactively(translator, output)
        return
    inputs = (_InputLine(given, "text") for given in text) if text else _read(files or ["-"], format_, source_key)
    counts = TranslationCounts()
    try:
        _translate(translator, _batches(inputs, lines), output, None if text else _line_count(files), counts)
    finally:
        print_notes(counts.notes(translator.search, by_default=split is None))


def _translate(
    translator: "Translator",
    batches: "Iterator[list[_InputLine]]",
    output: _OutputOptions,
    total: int | None,
    counts: TranslationCounts,
) -> None:
    """Write the translations of all lines, batch by batch. total: the number of lines, if known."""
    with TranslationProgress(total, hidden=sys.stdout.isatty()) as progress:  # on a terminal the lines show progress
        for batch in batches:
            report = partial(progress.update_batch, len(batch))
            texts = [line.text for line in batch]
            translations = translator.translate(texts, align=output.alignment, first=counts.texts, report=report)
            for number, (line, best) in enumerate(zip(batch, translations, strict=True), counts.texts + 1):
                sys.stdout.write(_output_rows(line, best, output, number))
            sys.stdout.flush()
            counts.add(translations)
            progress.finish_batch(len(batch))


def _line_count(files: list[str]) -> int | None:
    """The number of lines of uncompressed files; None for other input, where counting would be slow or impossible."""
    count = 0
    for file in files or ["-"]:
        if not Path(file).is_file() or file.endswith((".gz", ".zst")):
            return None
        with Path(file).open("rb") as content:
            count += sum(block.count(b"\n") for block in iter(partial(content.read, 1 << 20), b""))
    return count


def _read(files: list[str], format_: InputFormat | None, source_key: str) -> Iterator[_InputLine]:
    for file in files:
        input_format = format_ or _format_of(file)
        for number, line in enumerate(read_lines(file), 1):
            match input_format:
                case "tsv":
                    columns = tuple(line.split("\t"))
                    yield _InputLine(columns[0], "tsv", columns)
                case "jsonl":
                    row = parse_object(line, location(file, number))
                    yield _InputLine(get_text(row, source_key, location(file, number)), "jsonl", (), read_members(line))
                case "text":
                    yield _InputLine(line, "text")


def _format_of(file: str) -> InputFormat:
    name = file.removesuffix(".gz").removesuffix(".zst")
    return "tsv" if name.endswith(".tsv") else "jsonl" if name.endswith(".jsonl") else "text"


def _batches(lines: Iterator[_InputLine], size: int) -> Iterator[list[_InputLine]]:
    """Lines in batches; before an unreadable line raises its error, the lines read so far are yielded."""
    batch: list[_InputLine] = []
    try:
        for line in lines:
            batch.append(line)
            if len(batch) == size:
                yield batch
                batch = []
    except HeedError:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def _output_rows(line: _InputLine, best: "Translation", output: _OutputOptions, number: int) -> str:
    translations = (best, *best.alternatives)[: output.nbest]
    if line.members is not None:
        return write_members(line.members, _as_json(translations, output)) + "\n"
    rows = []
    for translation in translations:
        # A model may output line ends and tabs; here a translation must be one line and one column.
        columns = [*line.columns, " ".join(translation.text.splitlines())]
        if line.format == "tsv":
            columns[-1] = columns[-1].replace("\t", " ")
        if output.scores:
            columns.insert(len(line.columns), f"{translation.score:.6f}")
        if output.alignment:
            columns.append(_pharaoh(translation))
        if output.nbest > 1:
            columns.insert(0, str(number))  # a line may have fewer than nbest translations
        rows.append("\t".join(columns) + "\n")
    return "".join(rows)


def _as_json(translations: "tuple[Translation, ...]", output: _OutputOptions) -> dict[str, Any]:
    best, *alternatives = translations
    members: dict[str, Any] = {output.target_key: best.text}
    if output.scores:
        members["score"] = best.score
    if output.alignment:
        members["alignment"] = _pharaoh(best)
    members |= {name: True for name in ("truncated", "normalized") if getattr(best, name)}
    if best.corrections:
        members["corrections"] = [asdict(correction) for correction in best.corrections]
    if output.nbest > 1:
        members["alternatives"] = [{"text": other.text, "score": other.score} for other in alternatives]
    return members


def _pharaoh(translation: "Translation") -> str:
    """The word alignment in Pharaoh format, source-target."""
    links = word_alignment(translation.source_tokens, translation.tokens, translation.alignment)
    return " ".join(f"{source}-{target}" for source, target in links)


def _translate_interactively(translator: "Translator", output: _OutputOptions) -> None:
    typer.echo("type a line to translate it; end with Ctrl-D", err=True)
    for number in itertools.count():
        try:
            line = input("> ")
        except EOFError:
            typer.echo("", err=True)
            return
        (best,) = translator.translate([line], align=output.alignment, first=number)
        typer.echo(_output_rows(_InputLine(line, "text"), best, output, number + 1), nl=False)
        if best.truncated:
            print_notes(["the translation reached the length limit and is truncated"])
        if best.normalized:
            print_notes(["case, spaces or the final stop were changed before translation, as in the training text"])
        if best.corrections:
            print_notes([f"spelling corrected: {', '.join(map(str, best.corrections))}"])


def score(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    source: Annotated[str, typer.Option(help="Source text, one sentence per line.")],
    target: Annotated[str, typer.Option(help="Translations to score: line n translates line n of the source.")],
    ensemble: EnsembleOption = [],
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Print one JSON object per line, with each token's log-probability.")
    ] = False,
) -> None:
    """Print the log-probability of each given translation, one number per line.

    The end-of-sentence token is included.
    """
    pairs = list(read_pairs(Corpus(source, target)))
    translator = open_translator(model, ensemble, {})
    total, count = 0.0, 0
    for start in range(0, len(pairs), 1000):
        batch = pairs[start : start + 1000]
        targets = [pair.target for pair in batch]
        token_scores = translator.token_scores([pair.source for pair in batch], targets)
        tokenizer = translator.tokenizers[1]
        for ids, log_probs in zip(tokenizer.encode(targets), token_scores, strict=True):
            total, count = total + sum(log_probs), count + len(log_probs)
            if tokens:
                row = {"log_prob": sum(log_probs), "tokens": [*tokenizer.tokens(ids), "⏎"], "log_probs": log_probs}
                typer.echo(json.dumps(row, ensure_ascii=False))
            else:
                typer.echo(f"{sum(log_probs):.6f}")
    if count:
        perplexity = math.exp(-total / count)
        typer.echo(
            f"{len(pairs):,} sentences, {count:,} tokens: {total / count:.4f} per token, perplexity {perplexity:.3f}",
            err=True,
        )
