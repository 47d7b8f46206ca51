"""Fewer, larger matrix products to learn with: whatever is multiplied with the same vectors is multiplied at once.

A GPU takes longer for three products than for one of their size, most of all on the way back: there each adds to the
gradient of the same vectors, and the gradient of a small matrix is too small to keep the whole of the GPU busy. So a
layer's queries, keys and values are one product, and so are the keys and values that all layers make of the memory.
The weights stay where they are and are laid side by side for each pass; they are small beside the tokens.

The twins are the parts of `heed.model` that these take the place of.
"""

from typing import cast

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from heed.backends.cuda.attention import packed_self_attention
from heed.backends.fused_weights import cross_kv_projections, queries_keys_values, side_by_side
from heed.model.attention import AttentionContext, KeysValues, MultiHeadAttention
from heed.model.layers import Decoder, DecoderLayer
from heed.model.transformer import replace_modules


class JoinedAttention(MultiHeadAttention):
    """The weights of an attention; within packed sentences it is done at once."""

    def __init__(self, part: MultiHeadAttention) -> None:
        nn.Module.__init__(self)
        self.split, self.dropout = part.split, part.dropout
        self.query, self.key, self.value, self.output = part.query, part.key, part.value, part.output

    def self_attend(self, x: Float[Tensor, "tokens D"], context: AttentionContext) -> Float[Tensor, "tokens D"]:
        """What each token gathers from those tokens of its own sentence that it may see."""
        three = functional.linear(x, *side_by_side(queries_keys_values(self))).unflatten(-1, (3, *self.split))
        dropout = self.dropout if self.training else 0.0
        if context.rotation is None:
            heads = packed_self_attention(three, context.pattern, dropout)
        else:
            queries, keys, values = three.unbind(-3)
            heads = context.attend(context.rotation(queries), context.rotation(keys), values, context.pattern, dropout)
        return self.output(heads.flatten(-2))


class JoinedDecoder(Decoder):
    """The parts of a decoder; the memory is multiplied once for all layers."""

    def __init__(self, part: Decoder) -> None:
        nn.Module.__init__(self)
        self.positions, self.dropout, self.layers, self.norm = part.positions, part.dropout, part.layers, part.norm

    def keys_values(self, memory: Float[Tensor, "sources D"]) -> tuple[KeysValues, ...]:
        """The memory as each layer attends to it."""
        products, split = cross_kv_projections(self), cast("DecoderLayer", self.layers[0]).attention.split
        each = functional.linear(memory, *side_by_side(products)).unflatten(-1, (len(products), *split)).unbind(-3)
        return tuple(zip(each[::2], each[1::2], strict=True))


def with_joined_products(model: nn.Module) -> None:
    """Give a model these in all places of its own."""
    replace_modules(model, MultiHeadAttention, JoinedAttention)
    replace_modules(model, Decoder, JoinedDecoder)
