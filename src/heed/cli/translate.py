"""`heed translate`: lines in, as many lines out, in the same order."""

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from heed.text.corpus import read_lines

_PIECE = 512  # lines read, translated and written at a time


def translate(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    files: Annotated[list[str], typer.Argument(help="Files to translate, a sentence a line; none: standard input.")] = [
        "-"
    ],
) -> None:
    """Translate text, a sentence a line, from files or standard input to standard output."""
    from heed.decoding.translator import load  # noqa: PLC0415 - torch takes seconds to import

    translator = load(model)
    lines = (line for file in files for line in read_lines(file))
    for piece in _pieces(lines):
        for text in translator(piece):
            # A model may have learnt to write line ends; here a translation is one line.
            sys.stdout.write(" ".join(text.splitlines()) + "\n")
        sys.stdout.flush()


def _pieces(lines: Iterator[str]) -> Iterator[list[str]]:
    while piece := list(islice(lines, _PIECE)):
        yield piece
