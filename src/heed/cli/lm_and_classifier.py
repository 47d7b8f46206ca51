"""`heed generate`, `heed classify`, `heed embed`: text from a language model, labels and vectors for texts.

Enters: prompts or texts, one per line, from files, standard input or options. Leaves: as many results, in the same
order, on standard output; vectors perhaps in a file. Of models that translate only `embed` is for.
"""

import json
import sys
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from heed.cli.options import out_option
from heed.cli.output import say
from heed.config import SearchConfig
from heed.errors import DataError
from heed.text.corpus import read_lines

if TYPE_CHECKING:
    from heed.inference.classifier import Classification

_LINES_PER_BATCH = 512

Texts = Annotated[list[str], typer.Option("--text", help="A text; may be given several times.")]


def generate(
    model: Annotated[Path, typer.Argument(help="The folder of a language model.")],
    files: Annotated[list[str], typer.Argument(help="Prompts, one per line; - is standard input.")] = [],
    prompt: Annotated[
        list[str], typer.Option(help="A prompt; may be given several times; default: one empty prompt.")
    ] = [],
    count: Annotated[int, typer.Option(min=1, help="Texts for each prompt, one per line.")] = 1,
    sample: Annotated[
        bool,
        typer.Option(
            "--sample",
            help="Sample instead of greedy decoding; implied by --temperature, --top-k, --top-p and --seed.",
        ),
    ] = False,
    temperature: Annotated[
        float | None, typer.Option(help="Softmax temperature: below 1 sharpens, above 1 flattens.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample among the k most probable tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample among the most probable tokens whose probabilities sum to p.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the random numbers: the same seed, the same texts.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Most tokens of a text, its prompt included.")] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Write each text's log-probability before it.")] = False,
    stream: Annotated[bool, typer.Option("--stream", help="Show one text as it is being written.")] = False,
) -> None:
    """Continue prompts with a language model: greedy decoding, beam search with --count, or sampling."""
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed, "max_length": max_length}
    settings = {name: value for name, value in given.items() if value is not None}
    sampled = sample or bool(settings.keys() - {"max_length"})
    search = SearchConfig.model_validate(
        {**settings, "sample": sampled, "nbest": count, "beam": 1 if sampled else count}
    )
    if prompt and files:
        raise DataError(f"give --prompt or files of beginnings, not both: found --prompt and {files[0]}")
    prompts = prompt or [line for file in files for line in read_lines(file)] or ([] if files else [""])
    if stream and (len(prompts) != 1 or count != 1 or scores):
        raise DataError("--stream shows one text: one beginning, --count 1 and no --scores")

    from heed.inference.generator import Generator  # noqa: PLC0415 - torch takes seconds to import

    generator = Generator.open(model)
    if stream:
        for piece in chain(generator.stream(prompts[0], search), ["\n"]):
            _write(piece)
        return
    truncated = 0
    for number, beginning in enumerate(prompts):
        for one in generator.generate([beginning], search, number)[0]:
            truncated += one.truncated
            line = " ".join(one.text.splitlines())
            _write(f"{one.log_prob:.4f}\t{line}\n" if scores else f"{line}\n")
    if truncated:
        limit = search.max_length or generator.max_tokens
        say([f"{truncated:,} texts reached the length limit ({limit} tokens) and are cut off; raise --max-length"])


def classify(
    model: Annotated[Path, typer.Argument(help="The folder of a classifier.")],
    files: Annotated[list[str], typer.Argument(help="Texts, one per line, or two with a tab between.")] = [],
    text: Texts = [],
    every: Annotated[bool, typer.Option("--all", help="Write every label, the most probable first.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object per line.")] = False,
) -> None:
    """Label texts: for each line the most probable label and its probability; for an empty line, an empty one."""
    lines = _lines(text, files)

    from heed.inference.classifier import Classifier  # noqa: PLC0415 - torch takes seconds to import

    classifier = Classifier.open(model)
    while piece := list(islice(lines, _LINES_PER_BATCH)):
        classified = iter(classifier.classify([line for line in piece if line]))
        rows = (_row(next(classified), every=every, as_json=as_json) if line else "" for line in piece)
        _write("".join(f"{row}\n" for row in rows))


def _row(one: "Classification", *, every: bool, as_json: bool) -> str:
    if as_json:
        return json.dumps({"label": one.label, "probabilities": one.probabilities}, ensure_ascii=False)
    ranked = sorted(one.probabilities.items(), key=lambda item: -item[1])
    return "\t".join(f"{label}\t{probability:.4f}" for label, probability in (ranked if every else ranked[:1]))


def embed(
    model: Annotated[Path, typer.Argument(help="A model folder of any kind.")],
    files: Annotated[list[str], typer.Argument(help="Texts, one per line; none: standard input.")] = [],
    text: Texts = [],
    pooling: Annotated[
        Literal["mean", "first"], typer.Option(help="The mean of the tokens' hidden states, or the first token's.")
    ] = "mean",
    out: Annotated[Path | None, out_option("A .npy or .jsonl file; none: JSON lines to standard output.")] = None,
) -> None:
    """Turn texts into vectors, by the encoder of any model, or by a language model."""
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
    """The texts of --text, or else of files; of standard input where neither is given."""
    if texts and files:
        raise DataError(f"give --text or files, not both: found --text and {files[0]}")
    return iter(texts) if texts else chain.from_iterable(read_lines(file) for file in files or ["-"])


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
