"""`heed embed`: texts in, one vector for each out."""

import json
import sys
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import typer

from heed.cli.places import out_option
from heed.errors import DataError
from heed.text.corpus import read_lines


def embed(
    model: Annotated[Path, typer.Argument(help="A model folder of any kind.")],
    files: Annotated[list[str], typer.Argument(help="Texts, one a line; none: standard input.")] = [],
    text: Annotated[list[str], typer.Option(help="A text; may be given several times.")] = [],
    pooling: Annotated[
        Literal["mean", "first"], typer.Option(help="The mean of the tokens' vectors, or the first token's.")
    ] = "mean",
    out: Annotated[Path | None, out_option("A .npy or .jsonl file; none: JSON lines to standard output.")] = None,
) -> None:
    """Turn texts into vectors, by the encoder of any model, or by a language model."""
    if text and files:
        raise DataError(f"give --text or files, not both: found --text and {files[0]}")
    if out is not None and out.suffix not in (".npy", ".jsonl"):
        raise DataError(f"-o {out}: expected a name ending in .npy or .jsonl")

    import numpy as np  # noqa: PLC0415 - this and torch take seconds to import

    from heed.artifacts.folder import read_model_folder  # noqa: PLC0415
    from heed.inference.classifier import embed as vectors_of  # noqa: PLC0415

    folder = read_model_folder(model)
    texts = text or list(chain.from_iterable(read_lines(file) for file in files or ["-"]))
    vectors = vectors_of(folder.model(), folder.tokenizers[0], texts, pooling, folder.run.data.max_tokens)
    if out is None:
        sys.stdout.writelines(_lines(texts, vectors.tolist()))
        return
    try:
        if out.suffix == ".npy":
            np.save(out, vectors)
        else:
            out.write_text("".join(_lines(texts, vectors.tolist())), encoding="utf-8")
    except OSError as error:
        raise DataError(f"{out}: cannot be written: {error.strerror}") from None


def _lines(texts: list[str], vectors: list[list[float]]) -> list[str]:
    return [
        json.dumps({"text": text, "vector": vector}, ensure_ascii=False) + "\n"
        for text, vector in zip(texts, vectors, strict=True)
    ]
