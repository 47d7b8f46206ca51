"""`heed translate`: lines in, as many lines out, in the same order; `heed score`: log-probabilities of translations.

Enters: a model folder, and text lines, TSV rows or JSON objects from files, standard input or options. Leaves: the
translations, with scores and alignments on request, on standard output; notes and progress on standard error.
"""

import itertools
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from heed.cli.options import Engine, SearchSet, SplitAt, Together, open_translator, search_settings
from heed.cli.output import Translated, TranslationProgress, output_is_seen, say
from heed.config import TranslateConfig
from heed.errors import DataError, HeedError
from heed.text.corpus import Corpus, location, read_lines, read_pairs
from heed.text.rows import get_text, parse_object, read_members, write_members

if TYPE_CHECKING:
    from heed.inference.translation import Translation
    from heed.inference.translator import Translator

Format = Literal["text", "tsv", "jsonl"]


@dataclass(frozen=True)
class _Line:
    """A line to translate, and what it came in."""

    text: str
    format: Format
    columns: tuple[str, ...] = ()
    row: dict[str, str] | None = None  # the members of a JSON object, each as it was written


@dataclass(frozen=True)
class _Wanted:
    """What is to be written beside the translations."""

    nbest: int
    scores: bool
    alignment: bool
    target_key: str


def translate(
    model: Annotated[Path, typer.Argument(help="A model folder, or one that heed export wrote for an engine.")],
    files: Annotated[
        list[str], typer.Argument(help="Files to translate, one sentence per line; none: standard input.")
    ] = [],
    text: Annotated[list[str], typer.Option(help="A text to translate; may be given several times.")] = [],
    together: Together = [],
    engine: Engine = None,
    format_: Annotated[
        Format | None,
        typer.Option("--format", help="Input format: text, tsv or jsonl; default: by the file name."),
    ] = None,
    source_key: Annotated[str, typer.Option(help="The key of the text in a JSON object.")] = "source",
    target_key: Annotated[str, typer.Option(help="The key for the translation in a JSON object.")] = "target",
    beam: Annotated[int | None, typer.Option(help="Beam size; 1 is greedy decoding.")] = None,
    nbest: Annotated[int | None, typer.Option(help="Translations of each line, one per line, best first.")] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Write each translation's score before it.")] = False,
    alignment: Annotated[
        bool, typer.Option("--alignment", help="Write the word alignment after it: 0-0 1-2 …")
    ] = False,
    split: SplitAt = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say which backend translates, and why.")] = False,
    lines: Annotated[int, typer.Option(min=1, help="Lines per batch; 1: translate each line as it comes.")] = 512,
    set_: SearchSet = [],
) -> None:
    """Translate text from files, standard input or the command line to standard output, line by line.

    A line of several sentences is translated sentence by sentence, unless --split says otherwise. A TSV line gets its
    translation as one more column, a JSON object as one more key; all else passes through. With --nbest above 1 each
    row begins with the number of its line.
    """
    search = search_settings(set_, beam=beam, nbest=nbest)
    if text and files:
        raise DataError(f"give --text or files to translate, not both: found --text and {files[0]}")
    translator = open_translator(model, together, search, engine)
    if verbose:
        say([f"backend {translator.backend.choice}"])
    wanted = _Wanted(translator.search.nbest, scores, alignment, target_key)
    if split is not None:
        translator.settings = TranslateConfig(split=split)
    if not files and not text and sys.stdin.isatty():
        _converse(translator, wanted)
        return
    read = (_Line(one, "text") for one in text) if text else _read(files or ["-"], format_, source_key)
    counted = Translated()
    try:
        _translate(translator, _batches(read, lines), wanted, None if text else _line_count(files), counted)
    finally:
        say(counted.notes(translator.search, by_default=split is None))


def _translate(
    translator: "Translator", batches: "Iterator[list[_Line]]", wanted: _Wanted, total: int | None, counted: Translated
) -> None:
    """Write the translations of all lines, batch by batch. total: how many lines there are, if known."""
    with TranslationProgress(total, output_seen=output_is_seen()) as progress:
        for batch in batches:
            report = partial(progress.within, len(batch))
            texts = [line.text for line in batch]
            found = translator.translate(texts, align=wanted.alignment, first=counted.texts, report=report)
            for number, (line, translation) in enumerate(zip(batch, found, strict=True), counted.texts + 1):
                sys.stdout.write(_written(line, translation, wanted, number))
            sys.stdout.flush()
            counted.add(found)
            progress.add(len(batch))


def _line_count(files: list[str]) -> int | None:
    """How many lines there are to translate, where that is quickly known: of plain files."""
    count = 0
    for file in files or ["-"]:
        if not Path(file).is_file() or file.endswith((".gz", ".zst")):
            return None
        with Path(file).open("rb") as content:
            count += sum(block.count(b"\n") for block in iter(partial(content.read, 1 << 20), b""))
    return count


def _read(files: list[str], format_: Format | None, source_key: str) -> Iterator[_Line]:
    for file in files:
        known = format_ or _format_of(file)
        for number, line in enumerate(read_lines(file), 1):
            match known:
                case "tsv":
                    columns = tuple(line.split("\t"))
                    yield _Line(columns[0], "tsv", columns)
                case "jsonl":
                    row = parse_object(line, location(file, number))
                    yield _Line(get_text(row, source_key, location(file, number)), "jsonl", (), read_members(line))
                case "text":
                    yield _Line(line, "text")


def _format_of(file: str) -> Format:
    name = file.removesuffix(".gz").removesuffix(".zst")
    return "tsv" if name.endswith(".tsv") else "jsonl" if name.endswith(".jsonl") else "text"


def _batches(read: Iterator[_Line], size: int) -> Iterator[list[_Line]]:
    """Some lines at a time. A line that cannot be read ends the work, after those before it have been dealt with."""
    piece: list[_Line] = []
    try:
        for line in read:
            piece.append(line)
            if len(piece) == size:
                yield piece
                piece = []
    except HeedError:
        if piece:
            yield piece
        raise
    if piece:
        yield piece


def _written(line: _Line, best: "Translation", wanted: _Wanted, number: int) -> str:
    found = (best, *best.alternatives)[: wanted.nbest]
    if line.row is not None:
        return write_members(line.row, _as_json(found, wanted)) + "\n"
    rows = []
    for one in found:
        # A model may have learnt to write line ends and tabs; here a translation is one line, and one column.
        columns = [*line.columns, " ".join(one.text.splitlines())]
        if line.format == "tsv":
            columns[-1] = columns[-1].replace("\t", " ")
        if wanted.scores:
            columns.insert(len(line.columns), f"{one.score:.6f}")
        if wanted.alignment:
            columns.append(_pharaoh(one))
        if wanted.nbest > 1:
            columns.insert(0, str(number))  # a line may have fewer translations than were asked for
        rows.append("\t".join(columns) + "\n")
    return "".join(rows)


def _as_json(found: "tuple[Translation, ...]", wanted: _Wanted) -> dict[str, Any]:
    best = found[0]
    new: dict[str, Any] = {wanted.target_key: best.text}
    if wanted.scores:
        new["score"] = best.score
    if wanted.alignment:
        new["alignment"] = _pharaoh(best)
    if best.truncated:
        new["truncated"] = True
    if wanted.nbest > 1:
        new["alternatives"] = [{"text": one.text, "score": one.score} for one in found[1:]]
    return new


def _pharaoh(one: "Translation") -> str:
    from heed.decoding.forced_decoding import word_alignment  # noqa: PLC0415

    pairs = word_alignment(one.source_tokens, one.tokens, one.alignment)
    return " ".join(f"{source}-{target}" for source, target in pairs)


def _converse(translator: "Translator", wanted: _Wanted) -> None:
    """A prompt: a line in, its translation out, until the end of input."""
    typer.echo("a line in, its translation out; end with Ctrl-D", err=True)
    for number in itertools.count():
        try:
            line = input("> ")
        except EOFError:
            typer.echo("", err=True)
            return
        (best,) = translator.translate([line], align=wanted.alignment, first=number)
        typer.echo(_written(_Line(line, "text"), best, wanted, number + 1), nl=False)
        if best.truncated:
            say(["the translation reached the length limit and is cut off"])


def score(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    source: Annotated[str, typer.Option(help="Source text, one sentence per line.")],
    target: Annotated[str, typer.Option(help="The translations to score: line n translates line n of the source.")],
    together: Together = [],
    tokens: Annotated[
        bool, typer.Option("--tokens", help="One JSON object per line, with each token's log-probability.")
    ] = False,
) -> None:
    """Print the log-probability of each translation, end-of-sentence included: one number per line."""
    pairs = list(read_pairs(Corpus(source, target)))
    translator = open_translator(model, together, {})
    total, count = 0.0, 0
    for start in range(0, len(pairs), 1000):
        piece = pairs[start : start + 1000]
        targets = [pair.target for pair in piece]
        found = translator.token_scores([pair.source for pair in piece], targets)
        names = translator.tokenizers[1]
        for ids, scores in zip(names.encode(targets), found, strict=True):
            total, count = total + sum(scores), count + len(scores)
            if tokens:
                shown = {"log_prob": sum(scores), "tokens": [*names.tokens(ids), "⏎"], "log_probs": scores}
                typer.echo(json.dumps(shown, ensure_ascii=False))
            else:
                typer.echo(f"{sum(scores):.6f}")
    if count:
        perplexity = math.exp(-total / count)
        typer.echo(
            f"{len(pairs):,} sentences, {count:,} tokens: {total / count:.4f} a token, perplexity {perplexity:.3f}",
            err=True,
        )
