"""The bottleneck of a fixed vector: a sentence of any length must fit into it (Bahdanau et al. 2015).

Copying random strings, which leaves nothing to guess: recurrent models with a fixed vector and with attention, and a
Transformer, of the same number of parameters within 5 %. Measured are the exact copies of unseen strings, by length.
"""

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from heed.claims.claim import Context
from heed.claims.result import Panel, Scale, Series, Verdict
from heed.config import ModelConfig
from heed.inference.open import load
from heed.model.size import parameter_counts
from heed.training.train import train

_LETTERS = "abcdefghij"
_LENGTHS: dict[Scale, tuple[int, ...]] = {
    "smallest": (1, 2),
    "small": (2, 4, 6, 8, 12, 16, 20),
    "full": (2, 4, 6, 8, 12, 16, 20, 24, 28, 32),
}
_SIZES: dict[Scale, dict[str, int]] = {
    "smallest": {"pairs": 30, "tests": 2, "steps": 2, "width": 8},
    "small": {"pairs": 20_000, "tests": 50, "steps": 1500, "width": 64},
    "full": {"pairs": 100_000, "tests": 200, "steps": 6000, "width": 128},
}
_MODELS: dict[str, dict[str, Any]] = {
    "LSTM, fixed vector": {"mixer": "lstm", "source_context": "vector", "heads": 1},
    "LSTM, attention": {"mixer": "lstm", "heads": 1},
    "Transformer": {"mixer": "attention"},
}
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


def measure(context: Context) -> list[Panel]:
    """The share of exact copies by length, for each model and seed."""
    lengths, sizes = _LENGTHS[context.scale], _SIZES[context.scale]
    context.folder.mkdir(parents=True, exist_ok=True)
    pairs = context.folder / "pairs.jsonl"
    texts = _strings(0, sizes["pairs"], range(1, lengths[-1] + 1))
    pairs.write_text("".join(json.dumps({"source": text, "target": text}) + "\n" for text in texts))
    shape: dict[str, Any] = {"d_model": sizes["width"], "heads": 4, "encoder_layers": 2, "decoder_layers": 2}
    shape |= {"d_ff": 4 * sizes["width"], "norm": "pre", "dropout": 0.0, "attention_dropout": 0.0}
    transformer = parameters({**shape, **_MODELS["Transformer"]})
    series = []
    for name, choice in _MODELS.items():
        model = with_parameters({**shape, **choice}, transformer)
        values: list[list[float]] = [[] for _ in lengths]
        for seed in context.seeds:
            context.report(f"{name}, seed {seed}")
            run = context.folder / f"{name.lower().replace(', ', '-').replace(' ', '-')}-{seed}"
            translator = load(_trained(run, pairs, model, seed, sizes["steps"]))
            for index, length in enumerate(lengths):
                tests = list(_strings(seed, sizes["tests"], [length]))
                outputs = translator.translate(tests, beam=1, align=False)
                exact = sum(output.text == text for output, text in zip(outputs, tests, strict=True))
                values[index].append(exact / len(tests))
        series.append(Series(name, [float(length) for length in lengths], values))
    return [Panel("letters in the string", "share of exact copies", series)]


def _strings(seed: int, count: int, lengths: Iterable[int]) -> Iterable[str]:
    draw, choices = random.Random(f"{seed} {count}"), list(lengths)  # noqa: S311 - no secrets
    for _ in range(count):
        yield "".join(draw.choices(_LETTERS, k=draw.choice(choices)))


def _trained(run: Path, pairs: Path, model: dict[str, Any], seed: int, steps: int) -> Path:
    """The folder of a finished run; one that was interrupted continues."""
    settings = {**_TRAINING, **{f"model.{name}": value for name, value in model.items()}}
    settings |= {"training.seed": seed, "training.max_steps": steps, "training.checkpoint_every": max(1, steps // 2)}
    return train(pairs=pairs, out=run, preset="tiny", settings=settings, resume=True, cache=run.parent / "cache").folder


def parameters(model: dict[str, Any]) -> int:
    """The parameters of the layers, without embeddings, whose size depends on the vocabulary."""
    counts = parameter_counts(ModelConfig.model_validate({**model, "vocab_size": 100}))
    return sum(part.total for part in counts if "embedding" not in part.name)


def with_parameters(model: dict[str, Any], target: int) -> dict[str, Any]:
    """The model with the even width whose number of parameters comes closest to the target."""
    heads = model["heads"]
    widths = range(2 * heads, 4 * model["d_model"] + 1, 2 * heads)
    width = min(widths, key=lambda width: abs(parameters({**model, "d_model": width}) - target))
    return {**model, "d_model": width}


def judge(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether long strings are lost by the fixed vector alone."""
    (panel,) = panels
    short, long = panel.series[0].x[0], panel.series[0].x[-1]
    described = ", ".join(f"{series.name} {series.at(short):.0%} and {series.at(long):.0%}" for series in panel.series)
    finding = f"Exact copies of {short:.0f} and of {long:.0f} letters: {described}."
    vector, *others = (series.at(long) for series in panel.series)
    if vector < 0.5 and min(others) > 0.9:
        return "holds", finding
    return ("holds in part" if vector < min(others) else "does not hold here"), finding
