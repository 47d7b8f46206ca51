"""Tasks on random strings, which leave nothing to guess: small models trained with heed's own trainer, then tested.

Models have the same number of parameters within 5 %, without embeddings. Strings of the test are drawn anew for every
seed; short ones are mostly known from training.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from heed.claims.claim import Context
from heed.claims.parameters import parameters, with_parameters
from heed.claims.result import Scale, Series
from heed.claims.runs import results_of, train_runs
from heed.inference.open import load

StringTask = Callable[[random.Random, int], tuple[str, str]]  # source and target of a length

LETTERS = "abcdefghij"
_TRAINING = {
    "model.positions": "sinusoidal",
    "training.schedule": "cosine",
    "training.warmup_steps": 100,
    "training.clip_norm": 1.0,
    "training.label_smoothing": 0.0,
    "training.ema_decay": None,
    "training.patience": None,
    "training.stop_when_exact": None,
    "training.keep_last": 1,
    "data.tokenizer": "characters",
    "data.hold_out": 0,
}


@dataclass(frozen=True)
class StringTaskSize:
    """How large an experiment is."""

    pairs: int
    tests: int  # strings of each length
    steps: int
    width: int  # d_model of the Transformer
    tokens: int  # per batch
    decoder_layers: int = 2
    rate: float = 3e-3  # learning rate
    norm: str = "pre"
    max_tokens: int = 256  # of a string: longer ones would be left out

    def shape(self) -> dict[str, Any]:
        """The settings of a Transformer of this size."""
        shape = {"d_model": self.width, "d_ff": 4 * self.width, "heads": 4, "encoder_layers": 2}
        shape["decoder_layers"] = self.decoder_layers
        return {**shape, "norm": self.norm, "dropout": 0.0, "attention_dropout": 0.0}


SIZES: dict[Scale, StringTaskSize] = {
    "smallest": StringTaskSize(pairs=30, tests=2, steps=2, width=8, tokens=1024),
    "small": StringTaskSize(pairs=20_000, tests=50, steps=1500, width=64, tokens=512),
    "full": StringTaskSize(pairs=100_000, tests=200, steps=1500, width=128, tokens=4096),
}


def train_on_strings(
    context: Context,
    task: StringTask,
    models: Mapping[str, Mapping[str, Any]],
    lengths: Sequence[int],
    size: StringTaskSize | None = None,
) -> dict[str, list[Path]]:
    """The trained models of each kind, given by the settings in which it differs, one per seed.

    size: of the experiment; None: as usual.
    """
    size = size or SIZES[context.scale]
    context.folder.mkdir(parents=True, exist_ok=True)
    pairs = context.folder / "pairs.jsonl"
    lines = (
        json.dumps({"source": source, "target": target}) for source, target in draw_pairs(task, 0, size.pairs, lengths)
    )
    pairs.write_text("".join(f"{line}\n" for line in lines))
    target = parameters(size.shape())
    shapes = {name: with_parameters({**size.shape(), **settings}, target) for name, settings in models.items()}
    runs = {
        f"{name}, seed {seed}": _arguments(pairs, shape, seed, size)
        for name, shape in shapes.items()
        for seed in context.seeds
    }
    folders = train_runs(context, runs)
    return {name: [folders[f"{name}, seed {seed}"] for seed in context.seeds] for name in models}


@dataclass(frozen=True)
class StringTest:
    """What one model outputs for strings, by their length, and what it should."""

    outputs: Mapping[int, Sequence[str]]
    targets: Mapping[int, Sequence[str]]


def string_tests(
    context: Context,
    task: StringTask,
    models: Mapping[str, Sequence[Path]],
    lengths: Sequence[int],
    size: StringTaskSize | None = None,
) -> dict[str, list[StringTest]]:
    """Every model of each kind, tested on strings of these lengths, drawn anew for every seed."""
    count = (size or SIZES[context.scale]).tests
    jobs = {
        f"{name}, test {seed}": (task, folder, lengths, count, seed)
        for name, folders in models.items()
        for folder, seed in zip(folders, context.seeds, strict=True)
    }
    tested = results_of(context, _test, jobs)
    return {name: [tested[f"{name}, test {seed}"] for seed in context.seeds] for name in models}


def exact_outputs(models: Mapping[str, Sequence[StringTest]]) -> list[Series]:
    """The share of exact outputs by length of the string."""
    series = []
    for name, tested in models.items():
        lengths = list(tested[0].outputs)
        shares = [[_share_exact(test.outputs[length], test.targets[length]) for length in lengths] for test in tested]
        series.append(Series.of_runs(name, lengths, shares))
    return series


def right_letters(models: Mapping[str, Sequence[StringTest]], length: int) -> list[Series]:
    """The share of right letters by their position in the output, for strings of one length."""
    series = []
    for name, tested in models.items():
        shares = [
            [_share_right(test.outputs[length], test.targets[length], position) for position in range(length)]
            for test in tested
        ]
        series.append(Series.of_runs(name, range(1, length + 1), shares))
    return series


def _test(task: StringTask, folder: Path, lengths: Sequence[int], count: int, seed: int) -> StringTest:
    pairs = [pair for length in lengths for pair in draw_pairs(task, seed, count, [length])]
    outputs = load(folder).translate([source for source, _ in pairs], beam=1, align=False, split="line")
    texts, targets = [output.text for output in outputs], [target for _, target in pairs]
    parts = {length: slice(index * count, (index + 1) * count) for index, length in enumerate(lengths)}
    return StringTest(*({length: side[part] for length, part in parts.items()} for side in (texts, targets)))


def _share_exact(outputs: Sequence[str], targets: Sequence[str]) -> float:
    return fmean(output == target for output, target in zip(outputs, targets, strict=True))


def _share_right(outputs: Sequence[str], targets: Sequence[str], position: int) -> float:
    letters = zip(outputs, targets, strict=True)
    return fmean(output[position : position + 1] == target[position] for output, target in letters)


def draw_pairs(task: StringTask, seed: int, count: int, choices: Sequence[int]) -> Iterator[tuple[str, str]]:
    """So many pairs of a task, each with one of the lengths."""
    draw = random.Random(f"{seed} {count}")  # noqa: S311 - no secrets
    for _ in range(count):
        yield task(draw, draw.choice(choices))


def copying(draw: random.Random, length: int) -> tuple[str, str]:
    """A string of so many letters, to be copied."""
    text = "".join(draw.choices(LETTERS, k=length))
    return text, text


def _arguments(pairs: Path, model: dict[str, Any], seed: int, size: StringTaskSize) -> dict[str, Any]:
    """The arguments of `heed.train` for one model."""
    settings = {**_TRAINING, **{f"model.{name}": value for name, value in model.items()}}
    every = max(1, size.steps // 2)
    settings["data.max_tokens"] = size.max_tokens
    training: dict[str, Any] = {"max_steps": size.steps, "checkpoint_every": every, "tokens_per_batch": size.tokens}
    training["learning_rate"] = size.rate
    settings |= {"training.seed": seed, **{f"training.{name}": value for name, value in training.items()}}
    return {"pairs": pairs, "preset": "tiny", "settings": settings}
