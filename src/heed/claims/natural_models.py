"""The models of the claim on natural text, and the search for the best settings of each.

Each model has as many parameters, embeddings included, as a Transformer of the tiny preset. Around the same start, each
model's learning rate, depth against width, and dropout are searched, one after the other: the settings with the highest
validation BLEU so far are kept, and their neighbours are tried next.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from heed.claims.natural_runs import TOKENIZER
from heed.claims.parameters import parameters, with_parameters
from heed.claims.quality import MODELS
from heed.claims.result import Scale

_REFERENCE_WIDTH = 128
_LOWEST_DROPOUT, _DROPOUT_STEP = 0.1, 0.1
_TRAINING = {
    "data.tokenizer": TOKENIZER,
    "model.attention_dropout": 0.0,
    "training.schedule": "inverse-sqrt",
    "training.clip_norm": 1.0,
    "training.ema_decay": 0.999,
    "training.label_smoothing": 0.1,
    "training.best_by": "bleu",
    "training.patience": None,
    "training.stop_when_exact": None,
    "training.keep_last": 1,
    "training.compile": False,  # compilation takes longer than it saves
}


@dataclass(frozen=True)
class NaturalTextSize:
    """How large the experiment is."""

    width: int  # of the Transformer with the first number of layers
    layers: tuple[int, ...]  # of encoder and of decoder; the search begins with the first
    rate: float  # with which the search begins, for width 128
    dropout: float
    tokens: int  # per batch
    warmup: int
    search_steps: int
    steps: int
    validate_every: int
    stages: int  # of the search: learning rate, depth, dropout
    timed_steps: int


SIZES: dict[Scale, NaturalTextSize] = {
    "smallest": NaturalTextSize(
        width=16,
        layers=(1,),
        rate=5e-3,
        dropout=0.1,
        tokens=256,
        warmup=1,
        search_steps=1,
        steps=2,
        validate_every=1,
        stages=1,
        timed_steps=2,
    ),
    "small": NaturalTextSize(
        width=64,
        layers=(2,),
        rate=5e-3,
        dropout=0.1,
        tokens=2048,
        warmup=100,
        search_steps=150,
        steps=400,
        validate_every=100,
        stages=1,
        timed_steps=20,
    ),
    "full": NaturalTextSize(
        width=128,
        layers=(4, 2, 6),
        rate=0.01,
        dropout=0.3,
        tokens=16_384,
        warmup=300,
        search_steps=500,
        steps=1600,
        validate_every=200,
        stages=3,
        timed_steps=100,
    ),
}


@dataclass(frozen=True)
class SearchedSettings:
    """The settings that are searched for each model."""

    layers: int
    rate: float  # for width 128; the learning rate is inversely proportional to the width
    dropout: float

    def __str__(self) -> str:
        return f"{self.layers}+{self.layers} layers, rate {self.rate:g}, dropout {self.dropout:g}"


def start(size: NaturalTextSize) -> SearchedSettings:
    """Where the search begins, for every model."""
    return SearchedSettings(size.layers[0], size.rate, size.dropout)


def neighbours(best: SearchedSettings, stage: int, size: NaturalTextSize) -> list[SearchedSettings]:
    """What is tried in a stage: learning rates; depths, and a rate beyond the best if that is at an end; dropouts."""
    if stage == 0:
        return [best, replace(best, rate=best.rate / 2), replace(best, rate=best.rate * 2)]
    if stage == 1:
        depths = [replace(best, layers=layers) for layers in size.layers if layers != best.layers]
        return depths if best.rate == size.rate else [*depths, replace(best, rate=best.rate**2 / size.rate)]
    dropouts = (round(best.dropout + change, 2) for change in (-_DROPOUT_STEP, _DROPOUT_STEP))
    return [replace(best, dropout=dropout) for dropout in dropouts if dropout >= _LOWEST_DROPOUT]


def shape(model: str, layers: int, width: int, first_layers: int, vocab_size: int) -> dict[str, Any]:
    """The model settings with as many parameters as a Transformer of the first depth and this width."""
    base = {"d_model": width, "d_ff": 2 * width, "heads": 4, "norm": "pre", "activation_dropout": 0.0}
    target = parameters({**base, **_depth(first_layers)}, vocab_size)
    return with_parameters({**base, **_depth(layers), **MODELS[model]}, target, vocab_size)


def _depth(layers: int) -> dict[str, int]:
    return {"encoder_layers": layers, "decoder_layers": layers}


def settings(model: str, candidate: SearchedSettings, size: NaturalTextSize, vocab_size: int) -> dict[str, Any]:
    """The settings of a run, without its seed and number of steps."""
    shaped = shape(model, candidate.layers, size.width, size.layers[0], vocab_size)
    rate = candidate.rate * _REFERENCE_WIDTH / shaped["d_model"]
    return {
        **_TRAINING,
        **{f"model.{name}": value for name, value in shaped.items()},
        "model.dropout": candidate.dropout,
        "training.learning_rate": rate,
        "training.tokens_per_batch": size.tokens,
        "training.warmup_steps": size.warmup,
    }


def described(model: str, candidate: SearchedSettings, size: NaturalTextSize, vocab_size: int) -> str:
    """One line on the settings of a model."""
    shaped = shape(model, candidate.layers, size.width, size.layers[0], vocab_size)
    count, width = parameters(shaped, vocab_size), shaped["d_model"]
    rate = candidate.rate * _REFERENCE_WIDTH / width
    return (
        f"{model}: {candidate.layers}+{candidate.layers} layers, width {width}, {count:,} parameters, learning rate "
        f"{rate:.2g}, dropout {candidate.dropout:g}"
    )


def best_of(scores: Mapping[SearchedSettings, float]) -> SearchedSettings:
    """The candidate with the highest BLEU; the first of equal ones."""
    return max(scores, key=lambda candidate: scores[candidate])
