"""A trace as bertviz takes it, whose views of attention many people know."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from heed.inside.trace import Trace


def arguments(trace: Trace) -> dict[str, Any]:
    """The arguments of bertviz.head_view and model_view."""
    match trace.translator.model.config.kind:
        case "encoder":
            return {"attention": _layers(trace.encoder_attention), "tokens": list(trace.source_tokens)}
        case "decoder":
            return {"attention": _layers(trace.decoder_attention), "tokens": list(trace.target_tokens)}
        case _:
            return {
                "encoder_attention": _layers(trace.encoder_attention),
                "decoder_attention": _layers(trace.decoder_attention),
                "cross_attention": _layers(trace.cross_attention),
                "encoder_tokens": list(trace.source_tokens),
                "decoder_tokens": list(trace.target_tokens),
            }


def _layers(weights: Float[np.ndarray, "L H T S"]) -> list[Tensor]:
    return [torch.from_numpy(layer)[None] for layer in weights]
