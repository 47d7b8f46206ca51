"""A model's layers taken apart: matrix products without their last bias, and what comes between them (`Closing`).

Used where a step or an encoder is done by few large kernels; the model itself says the same in modules.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from heed.backends.cuda.step_ops import Closing, Norm
from heed.model.attention import MultiHeadAttention
from heed.model.layers import ACTIVATIONS, Decoder, DecoderLayer, FeedForward, Residual

Product: TypeAlias = tuple[Float[Tensor, "outputs inputs"], Float[Tensor, "outputs"]]  # a matrix and its bias


def side_by_side(parts: Sequence[nn.Linear]) -> Product:
    """Several products of the same vectors as one, to learn with."""
    return torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts])


@torch.no_grad()
def joined(parts: Sequence[nn.Linear], first_times: float = 1.0) -> Product:
    """Several products of the same vectors as one; the first may be scaled."""
    weight, bias = side_by_side(parts)
    for both in (weight, bias):
        both[: parts[0].out_features] *= first_times
    return weight, bias


def queries_keys_values(part: MultiHeadAttention) -> list[nn.Linear]:
    """The three matrices of self-attention, in the order in which they are joined."""
    return [part.query, part.key, part.value]


def cross_kv_projections(decoder: Decoder) -> list[nn.Linear]:
    """The matrices that make keys and values of the memory: of each layer in turn, as they are joined."""
    across = (layer.cross_attention for layer in cast("Iterable[DecoderLayer]", decoder.layers))
    return [part for attention in across if attention is not None for part in (attention.key, attention.value)]


def feed_forward(part: FeedForward) -> Callable[[Float[Tensor, "R D"]], Float[Tensor, "R D"]]:
    """The position-wise network, without its last bias."""
    widen, narrow = part.widen, part.narrow.weight
    if part.gate is not None:
        both, biases = (torch.cat((getattr(part.gate, name), getattr(widen, name))) for name in ("weight", "bias"))

        def gated(x: Tensor) -> Tensor:
            gate, wide = functional.linear(x, both, biases).chunk(2, -1)
            return (functional.silu(gate) * wide) @ narrow.t()

        return gated
    if part.activation == "relu":  # a product, its bias and max(0, x) in one kernel
        return lambda x: torch._addmm_activation(widen.bias, x, widen.weight.t()) @ narrow.t()
    activate = ACTIVATIONS[part.activation]
    return lambda x: activate(functional.linear(x, widen.weight, widen.bias)) @ narrow.t()


def closings(parts: Sequence[tuple[Residual, nn.Linear]], last: nn.Module) -> tuple[Norm | None, list[Closing]]:
    """The norm before the first sub-layer, if any, and what comes after each.

    parts: what is around each sub-layer, and its last product. Where norms come first in a sub-layer, what comes after
    one is the norm of the next, and after the last one the stack's own.
    """
    own = [_norm(around.norm) for around, _ in parts]
    if parts[0][0].order == "post":
        return None, [Closing(end.bias, None, norm, post=True) for (_, end), norm in zip(parts, own, strict=True)]
    following = [*own[1:], _norm(cast("nn.LayerNorm", last))]
    outer = [None if around.outer_norm is None else _norm(around.outer_norm) for around, _ in parts]
    return own[0], [
        Closing(end.bias, around, norm, post=False)
        for (_, end), around, norm in zip(parts, outer, following, strict=True)
    ]


def _norm(part: nn.LayerNorm) -> Norm:
    return Norm(part.weight, part.bias, part.eps)
