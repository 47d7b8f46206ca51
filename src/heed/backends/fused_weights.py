"""Weights of several linear layers concatenated into one matmul, and the norm parameters between sub-layers.

Used by decoders and encoders that run few large kernels instead of one module after another. Fused feed-forward and
output projections leave their last bias to `ResidualNorm`, which adds it in the kernel of the residual connection.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from heed.backends.cuda.step_ops import NormParams, ResidualNorm
from heed.model.attention import MultiHeadAttention
from heed.model.layers import ACTIVATIONS, Decoder, DecoderLayer, FeedForward, Residual

WeightAndBias: TypeAlias = tuple[Float[Tensor, "outputs inputs"], Float[Tensor, "outputs"]]


def concat_linear(layers: Sequence[nn.Linear]) -> WeightAndBias:
    """Linear layers of the same input as one; differentiable."""
    return torch.cat([layer.weight for layer in layers]), torch.cat([layer.bias for layer in layers])


@torch.no_grad()
def fuse_linear(layers: Sequence[nn.Linear], first_scale: float = 1.0) -> WeightAndBias:
    """Linear layers of the same input as one, for inference; first_scale multiplies the first layer's output."""
    weight, bias = concat_linear(layers)
    for parameter in (weight, bias):
        parameter[: layers[0].out_features] *= first_scale
    return weight, bias


def qkv_projections(attention: MultiHeadAttention) -> list[nn.Linear]:
    """The projections of self-attention, in the order in which they are fused."""
    return [attention.query, attention.key, attention.value]


def cross_kv_projections(decoder: Decoder) -> list[nn.Linear]:
    """Key and value projections of the encoder output, layer by layer, in the order in which they are fused."""
    attentions = (layer.cross_attention for layer in cast("Iterable[DecoderLayer]", decoder.layers))
    return [linear for attention in attentions if attention is not None for linear in (attention.key, attention.value)]


def feed_forward_without_bias(part: FeedForward) -> Callable[[Float[Tensor, "R D"]], Float[Tensor, "R D"]]:
    """The feed-forward network without the bias of its second linear layer."""
    ffn_in, ffn_out = part.widen, part.narrow.weight
    if part.gate is not None:
        weight, bias = (torch.cat((getattr(part.gate, name), getattr(ffn_in, name))) for name in ("weight", "bias"))

        def gated(x: Tensor) -> Tensor:
            gate, hidden = functional.linear(x, weight, bias).chunk(2, -1)
            return (functional.silu(gate) * hidden) @ ffn_out.t()

        return gated
    if part.activation == "relu":  # matmul, bias and ReLU in one kernel
        return lambda x: torch._addmm_activation(ffn_in.bias, x, ffn_in.weight.t()) @ ffn_out.t()
    activate = ACTIVATIONS[part.activation]
    return lambda x: activate(functional.linear(x, ffn_in.weight, ffn_in.bias)) @ ffn_out.t()


def residual_norms(
    sublayers: Sequence[tuple[Residual, nn.Linear]], last: nn.Module
) -> tuple[NormParams | None, list[ResidualNorm]]:
    """The norm before the first sub-layer, if any, and the residual connection and norm after each.

    sublayers: the residual wrapper of each sub-layer, and its last linear layer. In pre- and sandwich-norm models the
    norm after a sub-layer is the one before the next sub-layer, and after the last one it is the stack's final norm.
    """
    norms = [_norm_params(residual.norm) for residual, _ in sublayers]
    if sublayers[0][0].order == "post":
        pairs = zip(sublayers, norms, strict=True)
        return None, [ResidualNorm(linear.bias, None, norm, is_post=True) for (_, linear), norm in pairs]
    following = [*norms[1:], _norm_params(cast("nn.LayerNorm", last))]
    outer = [None if residual.outer_norm is None else _norm_params(residual.outer_norm) for residual, _ in sublayers]
    return norms[0], [
        ResidualNorm(linear.bias, outer_norm, norm, is_post=False)
        for (_, linear), outer_norm, norm in zip(sublayers, outer, following, strict=True)
    ]


def _norm_params(norm: nn.LayerNorm) -> NormParams:
    return NormParams(norm.weight, norm.bias, norm.eps)
