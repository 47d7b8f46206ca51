"""Fused QKV projections for training: linear layers of the same input become one matmul.

Three small matmuls take longer than one of their total size, most of all in the backward pass, where each adds to the
gradient of the same input, reads all of it again for the gradient of its weight, and is small for a GPU. So query, key
and value projections of a layer are one matmul, and so are all layers' key and value projections of the encoder output.
The parameters stay separate and are concatenated in each pass; they are small compared with the activations.

The references are the modules of `heed.model` that these replace.
"""

from collections.abc import Callable
from typing import TypeAlias, cast

from jaxtyping import Float
from torch import Tensor, nn

from heed.backends.fused_weights import concat_linear, cross_kv_projections, qkv_projections
from heed.model.attention import AttentionContext, KeysValues, MultiHeadAttention
from heed.model.layers import Decoder, DecoderLayer
from heed.model.layout import AttentionPattern
from heed.model.transformer import replace_modules

LinearOp: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]  # of an input, a weight and a bias
SelfAttentionFn: TypeAlias = Callable[[Tensor, AttentionPattern, float], Tensor]  # of queries, keys and values stacked


def _share_state(part: nn.Module, fused: nn.Module) -> None:
    """Give a fused module all attributes of its reference, also those that the reference gets in later versions."""
    vars(fused).update(vars(part))


class FusedQKVAttention(MultiHeadAttention):
    """Attention that shares another one's weights, with fused QKV in self-attention of packed sentences."""

    def __init__(self, part: MultiHeadAttention, linear: LinearOp, self_attention: SelfAttentionFn) -> None:
        nn.Module.__init__(self)
        _share_state(part, self)
        self._linear, self._self_attention = linear, self_attention

    def self_attend(self, x: Float[Tensor, "tokens D"], context: AttentionContext) -> Float[Tensor, "tokens D"]:
        qkv = self._linear(x, *concat_linear(qkv_projections(self))).unflatten(-1, (3, *self.split))
        dropout = self.dropout if self.training else 0.0
        if context.rotation is None:
            heads = self._self_attention(qkv, context.pattern, dropout)
        else:
            queries, keys, values = qkv.unbind(-3)
            heads = context.attend(context.rotation(queries), context.rotation(keys), values, context.pattern, dropout)
        return self.output(heads.flatten(-2))


class FusedKVDecoder(Decoder):
    """Decoder that shares another one's layers, with one matmul for all layers' cross-attention keys and values."""

    def __init__(self, part: Decoder, linear: LinearOp) -> None:
        nn.Module.__init__(self)
        _share_state(part, self)
        self._linear = linear

    def keys_values(self, memory: Float[Tensor, "sources D"]) -> tuple[KeysValues, ...]:
        """Keys and values of the encoder output, for each layer."""
        projections, split = cross_kv_projections(self), cast("DecoderLayer", self.layers[0]).attention.split
        each = self._linear(memory, *concat_linear(projections)).unflatten(-1, (len(projections), *split)).unbind(-3)
        return tuple(zip(each[::2], each[1::2], strict=True))


def use_fused_projections(model: nn.Module, linear: LinearOp, self_attention: SelfAttentionFn) -> None:
    """Replace the attention modules and the decoder of a model."""
    replace_modules(model, MultiHeadAttention, lambda part: FusedQKVAttention(part, linear, self_attention))
    replace_modules(model, Decoder, lambda part: FusedKVDecoder(part, linear))
