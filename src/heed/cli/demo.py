"""`heed demo`: all of heed on the built-in corpus, training to a look inside; `heed microworld` writes the corpus."""

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
            help="English, tab, French; only one language; or what `it` means (subject, object), tab, English."
        ),
    ] = "pairs",
    split: Annotated[
        DatasetSplit, typer.Option(help="The split to draw from; no sentence is in two of them.")
    ] = "train",
    count: Annotated[int, typer.Option(min=1, help="Lines to write.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Another seed: other sentences.")] = 0,
) -> None:
    """Write sentences of the built-in small world to standard output, one a line.

    Pairs and antecedents are all different. One language alone comes as the grammar draws it, with repetitions, for a
    language model to learn how likely each sentence is.
    """
    sys.stdout.writelines(f"{line}\n" for line in _lines(what, split, count, seed))


def _lines(what: str, split: DatasetSplit, count: int, seed: int) -> Iterator[str]:
    match what:
        case "pairs":
            return (f"{one.source}\t{one.target}" for one in corpus(split, count, seed))
        case "antecedents":
            return (f"{meant}\t{text}" for meant, text in antecedents(split, count, seed))
        case _:
            drawn = islice(examples(split, seed), count)
            return (one.source if what == "english" else one.target for one in drawn)


SETTINGS = {
    "model": {
        "d_model": 128,
        "heads": 4,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "d_ff": 256,
        "norm": "pre",
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
FAMOUS = (
    "The animal didn't cross the street because it was too tired.",
    "The animal didn't cross the street because it was too wide.",
)
EXAMPLES = (
    *FAMOUS,
    "My aunt wants the small green car.",
    "My young queen doesn't want the old white castles.",
    "The girls find a new newspaper and they read it.",
)
RUN = Path("runs/demo")
_SHADES = " ░▒▓█"


def demo(
    out: Annotated[Path, out_option("Where it all goes; a finished demo there is shown again.")] = RUN,
    seed: Annotated[int, typer.Option(min=0, help="Another seed: another corpus, another model.")] = 1,
    steps: Annotated[int, typer.Option(min=1, help="Fewer are faster, and not enough.")] = 900,
) -> None:
    """Train on a built-in English-French corpus, score held-out sentences, translate, and show what `it` looks at."""
    from heed.inference.open import load  # noqa: PLC0415 - torch takes seconds to import

    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"English to French, from {PAIRS['train']:,} sentences of a small world. The famous case is among them:"
    )
    console.print("what does `it` mean? French must know, to choose between il and elle.\n")
    for sentence in FAMOUS:
        console.print(f"  {sentence}")
    console.print("\nThese two themselves, and anything else of an animal and a street, are kept for the test.\n")
    _train(out, seed, steps)
    (out / "examples.txt").write_text("".join(f"{text}\n" for text in EXAMPLES), encoding="utf-8")  # for heed serve
    translator = load(out)
    tests = corpus("test", PAIRS["test"], seed)
    console.print(_scores(tests, translator([test.source for test in tests])))
    console.print("\nWhat `it` looks at in the encoder, for every layer.head; the darker, the more:")
    for sentence in FAMOUS:
        console.print(f"\n{sentence}\n{translator(sentence)}\n")
        console.print(_what_it_looks_at(translator, sentence))
    console.print("\nNot at what it means, it turns out: `heed pronouns` measures it, docs/looking.md has the answer.")
    console.print(f"\nThe model is in {out}. Try: echo '{EXAMPLES[2]}' | heed translate {out}")


def _train(out: Path, seed: int, steps: int) -> None:
    from heed.artifacts.checkpoint import newest_checkpoint  # noqa: PLC0415 - torch takes seconds to import
    from heed.cli.train import Watch  # noqa: PLC0415
    from heed.training.train import train  # noqa: PLC0415

    out.mkdir(parents=True, exist_ok=True)
    files = {split: _write(out / f"{split}.tsv", corpus(split, count, seed)) for split, count in PAIRS.items()}
    training = {**SETTINGS["training"], "seed": seed, "max_steps": steps, "warmup_steps": -(-steps // 9)}
    with Watch() as watch:
        train(
            pairs=files["train"],
            valid_pairs=files["valid"],
            out=out,
            preset="base",  # nothing but the defaults
            settings={**SETTINGS, "training": training},
            cache=out / "cache",
            resume=newest_checkpoint(out)[0] is not None,
            listener=watch,
        )


def _write(path: Path, examples: list[Example]) -> Path:
    path.write_text("".join(f"{one.source}\t{one.target}\n" for one in examples), encoding="utf-8")
    return path


def _scores(tests: list[Example], written: list[str]) -> str:
    pairs = list(zip(tests, written, strict=True))
    exact = sum(text == test.target for test, text in pairs) / len(pairs)
    famous = [pronoun_is_right(test, text) for test, text in pairs if test.antecedent]
    return (
        f"\nHeld-out sentences: {exact:.1%} of {len(pairs):,} are exactly right; "
        f"{sum(famous) / len(famous):.1%} of {len(famous)} pronouns are."
    )


def _what_it_looks_at(translator: "Translator", sentence: str) -> Text:
    """Every encoder head's view from `it`: the darker a cell, the more weight on the word above it."""
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
