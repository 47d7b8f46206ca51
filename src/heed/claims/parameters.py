"""Models of the same size: the width with which a model has as many parameters as another, without embeddings."""

import math
from collections.abc import Mapping
from typing import Any

from heed.config import ModelConfig
from heed.model.size import parameter_counts


def parameters(model: Mapping[str, Any]) -> int:
    """The parameters of the layers, without embeddings, whose size depends on the vocabulary."""
    counts = parameter_counts(ModelConfig.model_validate({**model, "vocab_size": 100}))
    return sum(part.total for part in counts if part.name not in ("token embedding", "learned positions"))


def with_parameters(model: dict[str, Any], target: int) -> dict[str, Any]:
    """The model with the width whose number of parameters comes closest to the target."""
    heads = model["heads"]
    # Sinusoidal positions and recurrence in two directions need an even width, rotary positions an even width per head.
    step = 2 * heads if model.get("positions") == "rotary" else math.lcm(2, heads)
    widths = range(step, 4 * model["d_model"] + 1, step)
    width = min(widths, key=lambda width: abs(parameters({**model, "d_model": width}) - target))
    return {**model, "d_model": width}
