"""`heed microworld`: sentences of the built-in corpus on standard output, to train models other than the demo's."""

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Literal

import typer

from heed.microworld.corpus import Split, antecedents, corpus, examples


def microworld(
    what: Annotated[
        Literal["pairs", "english", "french", "antecedents"],
        typer.Option(
            help="English, tab, French; only one language; or what `it` means (subject, object), tab, English."
        ),
    ] = "pairs",
    split: Annotated[Split, typer.Option(help="The split to draw from; no sentence is in two of them.")] = "train",
    count: Annotated[int, typer.Option(min=1, help="Lines to write.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Another seed: other sentences.")] = 0,
) -> None:
    """Write sentences of the built-in small world to standard output, one a line.

    Pairs and antecedents are all different. One language alone comes as the grammar draws it, with repetitions, for a
    language model to learn how likely each sentence is.
    """
    sys.stdout.writelines(f"{line}\n" for line in _lines(what, split, count, seed))


def _lines(what: str, split: Split, count: int, seed: int) -> Iterator[str]:
    match what:
        case "pairs":
            return (f"{one.source}\t{one.target}" for one in corpus(split, count, seed))
        case "antecedents":
            return (f"{meant}\t{text}" for meant, text in antecedents(split, count, seed))
        case _:
            drawn = islice(examples(split, seed), count)
            return (one.source if what == "english" else one.target for one in drawn)
