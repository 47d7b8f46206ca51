"""Copying random strings, which leaves nothing to guess: small models trained with heed's own trainer, then tested.

Models have the same number of parameters within 5 %, without embeddings. Strings of the test are drawn anew for every
seed; those of up to three letters are mostly known from training.
"""

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heed.claims.claim import Context
from heed.claims.result import Panel, Scale, Series
from heed.claims.runs import train_runs
from heed.config import ModelConfig
from heed.inference.open import load
from heed.model.size import parameter_counts

_LETTERS = "abcdefghij"
_TRAINING = {
    "training.tokens_per_batch": 1024,
    "training.schedule": "cosine",
    "training.learning_rate": 3e-3,
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
class Size:
    """How large a copying experiment is."""

    pairs: int
    tests: int  # strings of each length
    steps: int
    width: int  # d_model of the Transformer

    def shape(self) -> dict[str, Any]:
        """The settings of a Transformer of this size."""
        shape = {"d_model": self.width, "d_ff": 4 * self.width, "heads": 4, "encoder_layers": 2, "decoder_layers": 2}
        return {**shape, "norm": "pre", "dropout": 0.0, "attention_dropout": 0.0}


SIZES: dict[Scale, Size] = {
    "smallest": Size(pairs=30, tests=2, steps=2, width=8),
    "small": Size(pairs=20_000, tests=50, steps=1500, width=64),
    "full": Size(pairs=100_000, tests=200, steps=6000, width=128),
}


def exact_copies(
    context: Context, models: Mapping[str, Mapping[str, Any]], longest_trained: int, lengths: Sequence[int]
) -> Panel:
    """The share of exact copies by length, for each model, given by the settings in which it differs, and each seed."""
    size = SIZES[context.scale]
    context.folder.mkdir(parents=True, exist_ok=True)
    pairs = context.folder / "pairs.jsonl"
    texts = _strings(0, size.pairs, range(1, longest_trained + 1))
    pairs.write_text("".join(json.dumps({"source": text, "target": text}) + "\n" for text in texts))
    target = parameters(size.shape())
    shapes = {name: with_parameters({**size.shape(), **settings}, target) for name, settings in models.items()}
    runs = {
        f"{number}-{seed}": _arguments(pairs, shape, seed, size.steps)
        for number, shape in enumerate(shapes.values(), 1)
        for seed in context.seeds
    }
    folders = train_runs(context, runs)
    series = []
    for number, name in enumerate(models, 1):
        shares = [_shares(folders[f"{number}-{seed}"], lengths, size.tests, seed) for seed in context.seeds]
        by_length = [list(seeds) for seeds in zip(*shares, strict=True)]
        series.append(Series(name, [float(length) for length in lengths], by_length))
    return Panel("letters in the string", "share of exact copies", series)


def _shares(folder: Path, lengths: Sequence[int], count: int, seed: int) -> list[float]:
    """The share of exact copies of each length by one model."""
    translator, shares = load(folder), []
    for length in lengths:
        tests = list(_strings(seed, count, [length]))
        outputs = translator.translate(tests, beam=1, align=False, split="line")
        shares.append(sum(output.text == text for output, text in zip(outputs, tests, strict=True)) / count)
    return shares


def _strings(seed: int, count: int, lengths: Iterable[int]) -> Iterable[str]:
    draw, choices = random.Random(f"{seed} {count}"), list(lengths)  # noqa: S311 - no secrets
    for _ in range(count):
        yield "".join(draw.choices(_LETTERS, k=draw.choice(choices)))


def _arguments(pairs: Path, model: dict[str, Any], seed: int, steps: int) -> dict[str, Any]:
    """Of `heed.train`."""
    settings = {**_TRAINING, **{f"model.{name}": value for name, value in model.items()}}
    settings |= {"training.seed": seed, "training.max_steps": steps, "training.checkpoint_every": max(1, steps // 2)}
    return {"pairs": pairs, "preset": "tiny", "settings": settings}


def parameters(model: Mapping[str, Any]) -> int:
    """The parameters of the layers, without embeddings, whose size depends on the vocabulary."""
    counts = parameter_counts(ModelConfig.model_validate({**model, "vocab_size": 100}))
    return sum(part.total for part in counts if part.name not in ("token embedding", "learned positions"))


def with_parameters(model: dict[str, Any], target: int) -> dict[str, Any]:
    """The model with the width whose number of parameters comes closest to the target."""
    heads = model["heads"]
    widths = range(2 * heads, 4 * model["d_model"] + 1, 2 * heads)
    width = min(widths, key=lambda width: abs(parameters({**model, "d_model": width}) - target))
    return {**model, "d_model": width}
