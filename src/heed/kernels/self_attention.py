"""Self-attention whose queries, keys and values lie side by side, as one product makes them.

What is gathered is that of `attention.packed_attention`; on the way back the three gradients are written side by side
too, so that one product takes them further and nothing is copied to bring them together.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from heed.kernels.attention import gathered_and_sums, put_gradients
from heed.model.layout import Sight


def packed_self_attention(
    three: Float[Tensor, "tokens 3 H K"], sight: Sight, dropout: float
) -> Float[Tensor, "tokens H K"]:
    """Attention within packed sentences, on a GPU. Queries, keys and values, in this order, of every token."""
    own, _ = sight.packed_sides()
    seed = torch.randint(2**31, (1,), device=three.device) if dropout else own.offsets
    heads, _sums = _attend(three, own.owners, own.offsets, seed, sight.causal, dropout)
    return heads


@torch.library.custom_op("heed::packed_self_attention", mutates_args=())
def _attend(
    three: Tensor, owners: Tensor, offsets: Tensor, seed: Tensor, causal: bool, dropout: float
) -> tuple[Tensor, Tensor]:
    queries, keys, values = three.unbind(1)
    return gathered_and_sums(queries, keys, values, owners, offsets, owners, offsets, seed, causal, dropout)


@torch.library.custom_op("heed::packed_self_attention_backward", mutates_args=())
def _attend_back(  # noqa: PLR0913, PLR0917 - an operator takes tensors, not values made of them
    above: Tensor,
    three: Tensor,
    gathered: Tensor,
    sums: Tensor,
    owners: Tensor,
    offsets: Tensor,
    seed: Tensor,
    causal: bool,
    dropout: float,
) -> Tensor:
    queries, keys, values = three.unbind(1)
    by_three = three.new_empty(three.shape)
    by_queries, by_keys, by_values = by_three.unbind(1)
    gradients, sides = (by_queries, by_keys, by_values), (owners, offsets, owners, offsets)
    put_gradients(gradients, above, (queries, keys, values), (gathered, sums), sides, seed, causal, dropout)
    return by_three


@_attend.register_fake
def _(three: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    count, _three, heads, width = three.shape
    return three.new_empty((count, heads, width)), three.new_empty((heads, count), dtype=torch.float32)


@_attend_back.register_fake
def _(_above: Tensor, three: Tensor, *_: object) -> Tensor:
    return three.new_empty(three.shape)


def _remember(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    three, *tensors, ctx.causal, ctx.dropout = inputs
    ctx.save_for_backward(three, *output, *tensors)


def _back(ctx, above: Tensor, _sums: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
    return _attend_back(above, *ctx.saved_tensors, ctx.causal, ctx.dropout), *(None,) * 5


_attend.register_autograd(_back, setup_context=_remember)
