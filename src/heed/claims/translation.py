"""Small models that translate the built-in corpus, for claims that compare trained models.

A variant is given by the settings in which it differs from the base model; claims share the runs of equal variants.
The corpus is small and training short, so that a variant that trains slower or worse can be told from one that does
not; each sentence has one right translation, so the score is the share of exact translations of the validation set.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heed.claims.claim import Context
from heed.claims.result import Panel, Scale, Series
from heed.claims.runs import train_runs
from heed.microworld.corpus import DatasetSplit, corpus
from heed.training.step_log import JOURNAL, read_journal

Variant = Mapping[str, Any]  # settings by their full name, such as model.heads

_BASE = {
    "model.heads": 4,
    "model.encoder_layers": 2,
    "model.decoder_layers": 2,
    "model.norm": "pre",
    "model.positions": "sinusoidal",
    "model.dropout": 0.1,
    "model.attention_dropout": 0.0,
    "training.schedule": "cosine",
    "training.learning_rate": 3e-3,
    "training.warmup_steps": 100,
    "training.clip_norm": 1.0,
    "training.label_smoothing": 0.1,
    "training.ema_decay": None,
    "training.patience": None,
    "training.stop_when_exact": None,
    "training.keep_last": 1,
    "data.tokenizer": "words",
    "data.hold_out": 0,
}
_RATES: dict[Scale, tuple[float, ...]] = {
    "smallest": (3e-3,),
    "small": (1e-3, 3e-3, 1e-2),
    "full": (1e-3, 3e-3, 1e-2),
}
LOSS, EXACT = "validation loss", "share of exact translations"


@dataclass(frozen=True)
class TranslationSize:
    """How large an experiment is."""

    pairs: int
    validation_pairs: int
    steps: int
    validations: int
    width: int
    tokens: int  # per batch

    def settings(self) -> dict[str, Any]:
        """The settings of the base model."""
        every = self.steps // self.validations
        sizes = {"model.d_model": self.width, "model.d_ff": 4 * self.width, "training.max_steps": self.steps}
        sizes["training.tokens_per_batch"] = self.tokens
        return {**_BASE, **sizes, "training.validate_every": every, "training.checkpoint_every": self.steps}


SIZES: dict[Scale, TranslationSize] = {
    "smallest": TranslationSize(pairs=20, validation_pairs=4, steps=1, validations=1, width=16, tokens=1024),
    "small": TranslationSize(pairs=10_000, validation_pairs=300, steps=600, validations=6, width=64, tokens=1024),
    "full": TranslationSize(pairs=50_000, validation_pairs=1000, steps=1200, validations=6, width=128, tokens=4096),
}


@dataclass(frozen=True)
class TrainedVariant:
    """The runs of one variant, one per seed."""

    folders: list[Path]

    def curve(self, metric: str) -> dict[int, list[float]]:
        """The validation loss or the share of exact translations, of each seed, after so many steps."""
        runs = [_validations(folder, metric) for folder in self.folders]
        return {step: [run[step] for run in runs] for step in runs[0]}

    def final(self, metric: str) -> list[float]:
        """The same after the last step."""
        return list(self.curve(metric).values())[-1]

    def seconds(self) -> list[float]:
        """The training time of each seed, without validation."""
        return [sum(entry.get("seconds", 0.0) for entry in read_journal(folder / JOURNAL)) for folder in self.folders]


def _validations(folder: Path, metric: str) -> dict[int, float]:
    entries = [entry for entry in read_journal(folder / JOURNAL) if "validation_loss" in entry]
    if metric == LOSS:
        return {entry["step"]: entry["validation_loss"] for entry in entries}
    return {entry["step"]: entry["exact"] / entry["outputs"] for entry in entries}


def train_variants(
    context: Context, variants: Mapping[str, Variant], *, pairs: int | None = None, seeds: range | None = None
) -> dict[str, TrainedVariant]:
    """Each variant trained with every seed. pairs: how many to train on; None: as usual."""
    size = SIZES[context.scale]
    context.folder.mkdir(parents=True, exist_ok=True)
    text = write_pairs(context.folder / f"train-{pairs or size.pairs}.jsonl", "train", pairs or size.pairs)
    valid_text = write_pairs(context.folder / "valid.jsonl", "valid", size.validation_pairs)
    base, runs, names = size.settings(), {}, {}
    for variant, changes in variants.items():
        described = {name: value for name, value in changes.items() if base.get(name) != value}
        if pairs is not None:
            described["data.pairs"] = pairs
        names[variant] = [_run_name(described, seed) for seed in seeds or context.seeds]
        for name, seed in zip(names[variant], seeds or context.seeds, strict=True):
            settings = {**base, **changes, "training.seed": seed}
            runs[name] = {"pairs": text, "valid_pairs": valid_text, "preset": "tiny", "settings": settings}
    folders = train_runs(context, runs)
    return {variant: TrainedVariant([folders[name] for name in names[variant]]) for variant in variants}


def with_best_rates(context: Context, variants: Mapping[str, Variant]) -> dict[str, Variant]:
    """Each variant with the learning rate that gives it the lowest validation loss with the first seed."""
    rates = _RATES[context.scale]
    candidates = {
        f"{name} {rate}": {**variant, "training.learning_rate": rate}
        for name, variant in variants.items()
        for rate in rates
    }
    tried = train_variants(context, candidates, seeds=context.seeds[:1])
    best = {name: min(rates, key=lambda rate: tried[f"{name} {rate}"].final(LOSS)) for name in variants}
    context.report("learning rates: " + ", ".join(f"{name} {rate:g}" for name, rate in best.items()))
    return {name: candidates[f"{name} {rate}"] for name, rate in best.items()}


def write_pairs(path: Path, split: DatasetSplit, count: int) -> Path:
    """Write pairs of the built-in corpus."""
    examples = corpus(split, count)
    lines = (json.dumps({"source": example.source, "target": example.target}) for example in examples)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def _run_name(described: Variant, seed: int) -> str:
    return ",".join((*(f"{name.partition('.')[2]}={value}" for name, value in described.items()), f"seed={seed}"))


def curves(variants: Mapping[str, TrainedVariant], metric: str, log: str = "") -> Panel:
    """The learning curve of each variant."""
    series = []
    for name, variant in variants.items():
        curve = variant.curve(metric)
        series.append(Series(name, [float(step) for step in curve], list(curve.values())))
    return Panel("training steps", metric, series, log)


def finals(
    groups: Mapping[str, Iterable[tuple[float, TrainedVariant]]], x_label: str, metric: str, log: str = ""
) -> Panel:
    """The last values, over a number in which the variants of each group differ."""
    series = []
    for name, group in groups.items():
        points = list(group)
        series.append(Series(name, [x for x, _ in points], [variant.final(metric) for _, variant in points]))
    return Panel(x_label, metric, series, log)
