"""Recall by distance: a model reads keys with their values, and is asked for the value of one of them at the end.

    b4 e1 a7 c0 ?e → 1

To answer, it must relate the question to a key that it read long before. The value can be any digit, so guessing is
right in one case of ten.
"""

import random
from typing import Any

from heed.claims.claim import Context
from heed.claims.result import Panel, Scale, Verdict
from heed.claims.strings import exact_outputs

_PAIRS: dict[Scale, int] = {"smallest": 2, "small": 10, "full": 24}  # of keys and values in each string
_KEYS = "abcdefghijklmnopqrstuvwxyz"
TRANSFORMER, VECTOR = "Transformer", "LSTM, fixed vector"
MODELS: dict[str, dict[str, Any]] = {
    VECTOR: {"mixer": "lstm", "source_context": "vector", "heads": 1},
    "LSTM, attention": {"mixer": "lstm"},
    "convolution, attention": {"mixer": "convolution"},
    TRANSFORMER: {},
}


def measure(context: Context) -> list[Panel]:
    """The share of right answers by the distance of the key, for each model and seed."""
    pairs = _PAIRS[context.scale]

    def task(draw: random.Random, distance: int) -> tuple[str, str]:
        return question(draw, pairs, distance)

    series = exact_outputs(context, task, MODELS, range(1, pairs + 1), range(1, pairs + 1))
    return [Panel("keys from the question back to its key", "share of right answers", series)]


def question(draw: random.Random, pairs: int, distance: int) -> tuple[str, str]:
    """Different keys with their values and a question for the key at this distance from the end, and its value."""
    keys, values = draw.sample(_KEYS, pairs), draw.choices("0123456789", k=pairs)
    text = "".join(key + value for key, value in zip(keys, values, strict=True))
    return f"{text}?{keys[-distance]}", values[-distance]


def judge(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether the fixed vector forgets distant keys, and the Transformer does not."""
    (panel,) = panels
    near, far = panel.series[0].x[0], panel.series[0].x[-1]
    described = ", ".join(f"{series.name} {series.at(near):.0%} and {series.at(far):.0%}" for series in panel.series)
    finding = f"Right answers for the last key and for the one {far:.0f} keys back: {described}."
    transformer, vector = panel.named(TRANSFORMER), panel.named(VECTOR)
    if transformer.at(far) > 0.9 and vector.at(far) < vector.at(near) / 2:
        return "holds", finding
    return ("holds in part" if transformer.at(far) > vector.at(far) else "does not hold here"), finding
