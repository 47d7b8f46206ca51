"""`heed demo`: trains on the built-in corpus, evaluates, translates, shows attention; `heed microworld`: the corpus."""

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from heed.cli.options import out_option
from heed.microworld.corpus import DatasetSplit, Example, antecedents, corpus, examples, pronoun_is_right

if TYPE_CHECKING:
    from heed.inference.translator import Translator


def microworld(
    what: Annotated[
        Literal["pairs", "english", "french", "antecedents"],
        typer.Option(
            help="pairs: English, tab, French; english or french: one language; antecedents: what `it` refers to "
            "(subject or object), tab, English."
        ),
    ] = "pairs",
    split: Annotated[DatasetSplit, typer.Option(help="Part of the corpus; no sentence is in two parts.")] = "train",
    count: Annotated[int, typer.Option(min=1, help="Number of lines to write.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
) -> None:
    """Write sentences of the built-in English-French corpus to standard output, one per line.

    Pairs and antecedents have no duplicates. Sentences of one language are sampled from the grammar with repetitions,
    so that a language model can learn their distribution.
    """
    sys.stdout.writelines(f"{line}\n" for line in _lines(what, split, count, seed))


def _lines(what: str, split: DatasetSplit, count: int, seed: int) -> Iterator[str]:
    match what:
        case "pairs":
            return (f"{pair.source}\t{pair.target}" for pair in corpus(split, count, seed))
        case "antecedents":
            return (f"{antecedent}\t{text}" for antecedent, text in antecedents(split, count, seed))
        case _:
            sample = islice(examples(split, seed), count)
            return (pair.source if what == "english" else pair.target for pair in sample)


SETTINGS = {
    "model": {
        "d_model": 128,
        "heads": 4,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "d_ff": 256,
        "norm": "pre",
        "positions": "sinusoidal",
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
    },
    "data": {"tokenizer": "words", "vocab_size": 1400, "source_language": "en", "target_language": "fr"},
    "training": {
        "tokens_per_batch": 2048,
        "schedule": "cosine",
        "learning_rate": 3e-3,
        "clip_norm": 1.0,
        "label_smoothing": 0.0,
        "validate_every": 300,
        "checkpoint_every": 300,
        "keep_last": 1,
    },
}
PAIRS: dict[DatasetSplit, int] = {"train": 60_000, "valid": 500, "test": 1000}
WINOGRAD = (
    "The animal didn't cross the street because it was too tired.",
    "The animal didn't cross the street because it was too wide.",
)
EXAMPLES = (
    *WINOGRAD,
    "My aunt wants the small green car.",
    "My young queen doesn't want the old white castles.",
    "The girls find a new newspaper and they read it.",
)
RUN = Path("runs/demo")
_SHADES = " ░▒▓█"


def demo(
    out: Annotated[Path, out_option("Folder for the run; a finished demo in it is shown again.")] = RUN,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the corpus and the model.")] = 1,
    steps: Annotated[int, typer.Option(min=1, help="Training steps; fewer are faster and give a worse model.")] = 900,
) -> None:
    """Train on the built-in English-French corpus, evaluate on held-out sentences, and show what `it` attends to."""
    from heed.inference.open import load  # noqa: PLC0415 - slow to import

    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"English to French, trained on {PAIRS['train']:,} synthetic sentences. Some are Winograd sentences:\n"
        "the model must resolve what `it` refers to, to choose between il and elle.\n"
    )
    for sentence in WINOGRAD:
        console.print(f"  {sentence}")
    console.print("\nThese two, and every other sentence with an animal and a street, are only in the test set.\n")
    _train(out, seed, steps)
    (out / "examples.txt").write_text("".join(f"{text}\n" for text in EXAMPLES), encoding="utf-8")  # for heed serve
    translator = load(out)
    tests = corpus("test", PAIRS["test"], seed)
    console.print(_scores(tests, translator([test.source for test in tests])))
    console.print("\nEncoder self-attention of `it`, a row per layer.head; darker cells are larger weights:")
    for sentence in WINOGRAD:
        console.print(f"\n{sentence}\n{translator(sentence)}\n")
        console.print(_attention_of_it(translator, sentence))
    console.print(
        "\n`it` puts hardly more weight on its antecedent than on the other noun: `heed pronouns` measures this, "
        "docs/looking.md explains it."
    )
    console.print(f"\nThe model is in {out}. Try: echo '{EXAMPLES[2]}' | heed translate {out}")


def _train(out: Path, seed: int, steps: int) -> None:
    from heed.artifacts.checkpoint import newest_checkpoint  # noqa: PLC0415 - torch takes seconds to import
    from heed.cli.train import TrainingProgress  # noqa: PLC0415
    from heed.training.train import train  # noqa: PLC0415

    out.mkdir(parents=True, exist_ok=True)
    files = {split: _write(out / f"{split}.tsv", corpus(split, count, seed)) for split, count in PAIRS.items()}
    training = {**SETTINGS["training"], "seed": seed, "max_steps": steps, "warmup_steps": -(-steps // 9)}
    with TrainingProgress() as progress:
        train(
            pairs=files["train"],
            valid_pairs=files["valid"],
            out=out,
            preset="base",  # whose settings are the defaults
            settings={**SETTINGS, "training": training},
            cache=out / "cache",
            resume=newest_checkpoint(out)[0] is not None,
            listener=progress,
        )


def _write(path: Path, examples: list[Example]) -> Path:
    path.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in examples), encoding="utf-8")
    return path


def _scores(tests: list[Example], translations: list[str]) -> str:
    pairs = list(zip(tests, translations, strict=True))
    exact = sum(text == test.target for test, text in pairs) / len(pairs)
    pronouns = [pronoun_is_right(test, text) for test, text in pairs if test.antecedent]
    return (
        f"\nTest set: {exact:.1%} of {len(pairs):,} translations match exactly; "
        f"{sum(pronouns) / len(pronouns):.1%} of {len(pronouns)} pronouns are right."
    )


def _attention_of_it(translator: "Translator", sentence: str) -> Text:
    """The attention weights of the token `it` in every encoder head, as shades below the source tokens."""
    trace = translator.look(sentence)
    tokens = [token.strip() for token in trace.source_tokens]
    it = tokens.index("it")
    widths = [max(len(token), 2) for token in tokens]
    lines = ["         " + " ".join(token.ljust(width) for token, width in zip(tokens, widths, strict=True))]
    for layer, heads in enumerate(trace.encoder_attention, 1):
        for head, rows in enumerate(heads, 1):
            cells = [
                _SHADES[min(int(weight * len(_SHADES)), len(_SHADES) - 1)] * width
                for weight, width in zip(rows[it], widths, strict=True)
            ]
            lines.append(f"  {layer}.{head} it " + " ".join(cells))
    return Text("\n".join(lines))
