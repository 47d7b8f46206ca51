"""`heed generate`: a language model goes on with what it is given."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from heed.cli.searching import say
from heed.config import SearchConfig
from heed.errors import DataError
from heed.text.corpus import read_lines


def generate(
    model: Annotated[Path, typer.Argument(help="The folder of a language model.")],
    files: Annotated[list[str], typer.Argument(help="Beginnings, one a line; - is standard input.")] = [],
    prompt: Annotated[list[str], typer.Option(help="A beginning; may be given several times; none: no words.")] = [],
    count: Annotated[int, typer.Option(min=1, help="Texts for each beginning, one a line.")] = 1,
    sample: Annotated[bool, typer.Option("--sample", help="Draw words at random; so do the next four.")] = False,
    temperature: Annotated[float | None, typer.Option(help="Below 1 bolder, above 1 wilder.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Only among the k likeliest words.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Only among the likeliest that together have this much.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed draws the same words.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Most tokens of a text, its beginning included.")] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Write each text's log-probability before it.")] = False,
    stream: Annotated[bool, typer.Option("--stream", help="Show one text as it is being written.")] = False,
) -> None:
    """Let a language model write: the likeliest next word, and so on; or drawn at random, if anything random is set."""
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed, "max_length": max_length}
    settings = {name: value for name, value in given.items() if value is not None}
    drawn = sample or bool(settings.keys() - {"max_length"})
    search = SearchConfig.model_validate({**settings, "sample": drawn, "nbest": count, "beam": 1 if drawn else count})
    if prompt and files:
        raise DataError(f"give --prompt or files of beginnings, not both: found --prompt and {files[0]}")
    prompts = prompt or [line for file in files for line in read_lines(file)] or ([] if files else [""])
    if stream and (len(prompts) != 1 or count != 1 or scores):
        raise DataError("--stream shows one text: one beginning, --count 1 and no --scores")

    from heed.inference.generator import Generator  # noqa: PLC0415 - torch takes seconds to import

    generator = Generator.open(model)
    try:
        if stream:
            for piece in generator.stream(prompts[0], search):
                _write(piece)
            _write("\n")
            return
        truncated = 0
        for number, beginning in enumerate(prompts):
            for one in generator.generate([beginning], search, number)[0]:
                truncated += one.truncated
                _write(f"{one.log_prob:.4f}\t{_line(one.text)}\n" if scores else f"{_line(one.text)}\n")
        if truncated:
            limit = search.max_length or generator.max_tokens
            say([f"{truncated:,} texts reached the length limit ({limit} tokens) and are cut off; raise --max-length"])
    except BrokenPipeError:  # whoever reads has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _line(text: str) -> str:
    """A text of several lines as one, so that texts are lines."""
    return " ".join(text.splitlines())


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
