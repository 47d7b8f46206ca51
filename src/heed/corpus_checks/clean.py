"""A checked text written anew without its bad pairs.

Enters: training corpora and the fault of each of their pairs. Leaves: a .tsv or .jsonl file of the good pairs, or the
lines of single texts; and how many were left out, by kind of fault. Nothing is corrected, with one exception that is
counted: tabs and line ends inside a text of a .tsv file become spaces.
"""

import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from heed.corpus_checks.text_errors import DROPPED, CorpusReport, Form
from heed.errors import DataError
from heed.text.corpus import Corpus, Pair, read_pairs


@dataclass(frozen=True)
class Cleaned:
    """What was written, and what was not."""

    file: str
    kept: int
    dropped: dict[str, int]  # by kind of fault
    respaced: int  # pairs in which tabs or line ends became spaces


def check_writable(path: Path, corpora: Sequence[Corpus], form: Form) -> None:
    """Whether a cleaned text can go there."""
    if form != "texts" and path.suffix.lower() not in (".tsv", ".jsonl"):
        raise DataError(f"--write {path}: expected a name ending in .tsv or .jsonl")
    for corpus in corpora:
        for file in filter(None, (corpus.source, corpus.target, corpus.pairs, corpus.text)):
            if path.exists() and os.path.exists(file) and path.samefile(file):
                raise DataError(f"--write {path}: this is the text itself; expected another name")


def write_clean(path: Path, corpora: Sequence[Corpus], report: CorpusReport) -> Cleaned:
    """Write what is left of the training corpora; the file is whole or not there."""
    kept = respaced = 0
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8", newline="\n") as file:
            try:
                for pair in _left(corpora, report):
                    line, changed = _line(pair, report.form, corpora, jsonl=path.suffix.lower() == ".jsonl")
                    file.write(line)
                    kept, respaced = kept + 1, respaced + changed
                file.close()
                Path(file.name).chmod(0o644)
                Path(file.name).replace(path)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(file.name)
    except OSError as error:
        raise DataError(f"--write {path}: cannot be written: {error.strerror}") from None
    counts = {kind: int((report.dropped == place).sum()) for place, kind in enumerate(DROPPED, 1)}
    counts["unreadable"] = sum(one.count for one in report.findings if one.kind == "unreadable")
    return Cleaned(str(path), kept, {kind: count for kind, count in counts.items() if count}, respaced)


def _left(corpora: Sequence[Corpus], report: CorpusReport) -> Iterator[Pair]:
    pairs = (pair for corpus in corpora for pair in read_pairs(corpus, lambda _: None))
    return (pair for pair, fault in zip(pairs, report.dropped, strict=True) if not fault)


def _line(pair: Pair, form: Form, corpora: Sequence[Corpus], *, jsonl: bool) -> tuple[str, bool]:
    """A pair as it is written, and whether it was changed for that."""
    if form == "texts":
        return f"{pair.target}\n" + "\n" * corpora[0].documents, False
    texts = [pair.target, *pair.source.split("\t")] if form == "labelled" else [pair.source, pair.target]
    if jsonl:
        names = ("label", "text", "text2") if form == "labelled" else ("source", "target")
        return json.dumps(dict(zip(names, texts, strict=False)), ensure_ascii=False) + "\n", False
    cells = [re.sub(r"[\t\r\n]+", " ", text) for text in texts]
    return "\t".join(cells) + "\n", cells != texts
