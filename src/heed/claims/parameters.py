"""Models of the same size: the width with which a model has as many parameters as another."""

import math
from collections.abc import Mapping
from typing import Any

from heed.config import ModelConfig
from heed.model.size import parameter_counts


def parameters(model: Mapping[str, Any], vocab_size: int | None = None) -> int:
    """The parameters of a model with a vocabulary of this size; None: of its layers alone, without embeddings."""
    counts = parameter_counts(ModelConfig.model_validate({**model, "vocab_size": vocab_size or 100}))
    left_out = () if vocab_size else ("token embedding", "learned positions")
    return sum(part.total for part in counts if part.name not in left_out)


def with_parameters(model: dict[str, Any], target: int, vocab_size: int | None = None) -> dict[str, Any]:
    """The model with the width whose number of parameters comes closest to the target.

    The feed-forward network keeps its width relative to the model's. vocab_size: as of `parameters`.
    """
    heads, widening = model["heads"], model.get("d_ff", 0) / model["d_model"]
    # Sinusoidal positions and recurrence in two directions need an even width, rotary positions an even width per head.
    step = 2 * heads if model.get("positions") == "rotary" else math.lcm(2, heads)

    def of_width(width: int) -> dict[str, Any]:
        return {**model, "d_model": width} | ({"d_ff": round(widening * width)} if widening else {})

    widths = range(step, 4 * model["d_model"] + 1, step)
    return of_width(min(widths, key=lambda width: abs(parameters(of_width(width), vocab_size) - target)))
