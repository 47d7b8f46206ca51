"""`heed generate`, `classify` and `embed`: text from a language model, labels and embeddings of texts.

Enters: prompts or texts, one per line, from files, standard input or options. Leaves: as many results, in the same
order, on standard output or, for embeddings, in a file.
"""

import json
import sys
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from heed.cli.options import out_option
from heed.cli.output import print_notes
from heed.errors import DataError
from heed.search_config import SearchConfig
from heed.text.corpus import read_lines

if TYPE_CHECKING:
    from heed.inference.classifier import Classification

_LINES_PER_BATCH = 512

SampleOption = Annotated[
    bool,
    typer.Option(
        "--sample", help="Sample instead of greedy search; implied by --temperature, --top-k, --top-p and --seed."
    ),
]
TextsOption = Annotated[list[str], typer.Option("--text", help="An input text; may be given several times.")]


def generate(
    model: Annotated[Path, typer.Argument(help="Model folder of a language model.")],
    files: Annotated[list[str], typer.Argument(help="Files of prompts, one per line; - is standard input.")] = [],
    prompt: Annotated[
        list[str], typer.Option(help="A prompt; may be given several times; default: an empty prompt.")
    ] = [],
    count: Annotated[int, typer.Option(min=1, help="Number of texts per prompt.")] = 1,
    sample: SampleOption = False,
    temperature: Annotated[
        float | None, typer.Option(help="Softmax temperature: below 1 sharpens, above 1 flattens; default: 1.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Sample among the k most probable tokens; default: all tokens.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Sample among the most probable tokens whose probabilities sum to p; default: all tokens."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed of sampling; default: 1.")] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Maximum tokens per text, prompt included; default: as in training.")
    ] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Write each text's log-probability before it.")] = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="Print the text while it is generated; for a single prompt.")
    ] = False,
) -> None:
    """Continue prompts with a language model: greedy search, beam search with --count, or sampling."""
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed, "max_length": max_length}
    settings = {name: value for name, value in options.items() if value is not None}
    sampled = sample or bool(settings.keys() - {"max_length"})
    search = SearchConfig.model_validate(
        {**settings, "sample": sampled, "nbest": count, "beam": 1 if sampled else count}
    )
    if prompt and files:
        raise DataError(f"expected --prompt or files of prompts, not both: found --prompt and {files[0]}")
    prompts = prompt or [line for file in files for line in read_lines(file)] or ([] if files else [""])
    if stream and (len(prompts) != 1 or count != 1 or scores):
        raise DataError("--stream prints one text: expected one prompt, --count 1 and no --scores")

    from heed.inference.generator import Generator  # noqa: PLC0415 - torch takes seconds to import

    generator = Generator.open(model)
    if stream:
        for chunk in chain(generator.stream(prompts[0], search), ["\n"]):
            _write(chunk)
        return
    truncated = 0
    for number, text in enumerate(prompts):
        for generated in generator.generate([text], search, number)[0]:
            truncated += generated.truncated
            line = " ".join(generated.text.splitlines())
            _write(f"{generated.log_prob:.4f}\t{line}\n" if scores else f"{line}\n")
    if truncated:
        limit = search.max_length or generator.max_tokens
        note = f"{truncated:,} texts reached the length limit ({limit} tokens) and are truncated; raise --max-length"
        print_notes([note])


def classify(
    model: Annotated[Path, typer.Argument(help="Model folder of a classifier.")],
    files: Annotated[list[str], typer.Argument(help="Texts or tab-separated text pairs, one per line.")] = [],
    text: TextsOption = [],
    every: Annotated[bool, typer.Option("--all", help="Print every label, most probable first.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Classify texts: print the most probable label of each line and its probability.

    An empty input line gives an empty output line.
    """
    lines = _lines(text, files)

    from heed.inference.classifier import Classifier  # noqa: PLC0415 - torch takes seconds to import

    classifier = Classifier.open(model)
    while batch := list(islice(lines, _LINES_PER_BATCH)):
        predictions = iter(classifier.classify([line for line in batch if line]))
        rows = (_row(next(predictions), every=every, as_json=as_json) if line else "" for line in batch)
        _write("".join(f"{row}\n" for row in rows))


def _row(prediction: "Classification", *, every: bool, as_json: bool) -> str:
    if as_json:
        return json.dumps({"label": prediction.label, "probabilities": prediction.probabilities}, ensure_ascii=False)
    ranked = sorted(prediction.probabilities.items(), key=lambda item: -item[1])
    return "\t".join(f"{label}\t{probability:.4f}" for label, probability in (ranked if every else ranked[:1]))


def embed(
    model: Annotated[Path, typer.Argument(help="Model folder of any task.")],
    files: Annotated[list[str], typer.Argument(help="Texts, one per line; default: standard input.")] = [],
    text: TextsOption = [],
    pooling: Annotated[
        Literal["mean", "first"],
        typer.Option(
            help="mean: of the hidden states of all tokens; first: the first token's, not for a language model."
        ),
    ] = "mean",
    out: Annotated[Path | None, out_option("A .npy or .jsonl file; default: JSON lines on standard output.")] = None,
) -> None:
    """Compute an embedding of each text: the pooled hidden states of the last layer.

    They are the encoder's, or a language model's.
    """
    lines = _lines(text, files)
    if out is not None and out.suffix not in (".npy", ".jsonl"):
        raise DataError(f"-o {out}: expected a name ending in .npy or .jsonl")

    import numpy as np  # noqa: PLC0415 - this and torch take seconds to import

    from heed.artifacts.folder import read_model_folder  # noqa: PLC0415
    from heed.inference.classifier import embed as embeddings_of  # noqa: PLC0415

    folder = read_model_folder(model)
    texts = list(lines)
    vectors = embeddings_of(folder.model(), folder.tokenizers[0], texts, pooling, folder.run.data.max_tokens)
    rows = (
        json.dumps({"text": line, "vector": vector}, ensure_ascii=False) + "\n"
        for line, vector in zip(texts, vectors.tolist(), strict=True)
    )
    if out is None:
        sys.stdout.writelines(rows)
        return
    try:
        if out.suffix == ".npy":
            np.save(out, vectors)
        else:
            out.write_text("".join(rows), encoding="utf-8")
    except OSError as error:
        raise DataError(f"{out}: cannot be written: {error.strerror}") from None


def _lines(texts: list[str], files: list[str]) -> Iterator[str]:
    """The texts of --text, or the lines of the files; of standard input if neither is given."""
    if texts and files:
        raise DataError(f"expected --text or files, not both: found --text and {files[0]}")
    return iter(texts) if texts else chain.from_iterable(read_lines(file) for file in files or ["-"])


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
