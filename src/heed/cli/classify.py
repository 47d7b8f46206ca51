"""`heed classify`: texts in, as many labels out, in the same order."""

import json
import os
import sys
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heed.errors import DataError
from heed.text.corpus import read_lines

if TYPE_CHECKING:
    from heed.inference.classifier import Classified

_AT_ONCE = 512


def classify(
    model: Annotated[Path, typer.Argument(help="The folder of a classifier.")],
    files: Annotated[list[str], typer.Argument(help="Texts, one a line, or two with a tab between.")] = [],
    text: Annotated[list[str], typer.Option(help="A text; may be given several times.")] = [],
    every: Annotated[bool, typer.Option("--all", help="Write every label, the likeliest first.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object a line.")] = False,
) -> None:
    """Label texts: for each line the likeliest label and its probability; for an empty line, an empty one."""
    if text and files:
        raise DataError(f"give --text or files, not both: found --text and {files[0]}")

    from heed.inference.classifier import Classifier  # noqa: PLC0415 - torch takes seconds to import

    classifier = Classifier.open(model)
    lines = iter(text) if text else chain.from_iterable(read_lines(file) for file in files or ["-"])
    try:
        while piece := list(islice(lines, _AT_ONCE)):
            found = iter(classifier.classify([line for line in piece if line]))
            for line in piece:
                shown = _shown(next(found), every=every, as_json=as_json) if line else ""
                sys.stdout.write(f"{shown}\n")
            sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _shown(found: "Classified", *, every: bool, as_json: bool) -> str:
    if as_json:
        return json.dumps({"label": found.label, "probabilities": found.probabilities}, ensure_ascii=False)
    ranked = sorted(found.probabilities.items(), key=lambda one: -one[1])
    return "\t".join(f"{label}\t{probability:.4f}" for label, probability in (ranked if every else ranked[:1]))
