"""Weights of linear layers of the same input, concatenated into one matmul: few large kernels instead of many small."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from heed.model.attention import MultiHeadAttention
from heed.model.layers import Decoder, DecoderLayer

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
