"""Feed-forward networks for training on a CPU: ReLU and dropout run inside the matmuls of `csrc/gemm.h`.

The hidden states of the feed-forward network are the largest activations of a layer. Here each is written once, after
ReLU and dropout, while it is in cache, and so is its gradient. The reference is `FeedForward` of `heed.model.layers`.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from heed.backends.cpu.dropout import DropoutStruct, draw_seed
from heed.backends.cpu.linear import is_small, matmul
from heed.model.layers import FeedForward
from heed.model.transformer import replace_modules


class NativeFeedForward(nn.Module):
    """Replacement of a `FeedForward` with ReLU, sharing its weights; small inputs go to the one it replaces."""

    def __init__(self, part: FeedForward) -> None:
        super().__init__()
        self.part, self.rate = part, part.dropout.p

    def forward(self, x: Float[Tensor, "*tokens D"]) -> Float[Tensor, "*tokens D"]:
        widen, narrow, rate = self.part.widen, self.part.narrow, self.rate if self.training else 0.0
        if is_small(x, widen.weight):
            return self.part(x)
        dropout = DropoutStruct.of(rate, draw_seed() if rate else 0)
        weights = (widen.weight, widen.bias, narrow.weight, narrow.bias)
        output = _FeedForward.apply(x.flatten(0, -2), *weights, dropout)  # type: ignore[no-untyped-call]
        return output.unflatten(0, x.shape[:-1])


def use_native_feed_forward(model: nn.Module) -> None:
    """Replace every `FeedForward` of a model that has ReLU. Its dropout must still be torch's."""
    replace_modules(model, FeedForward, lambda part: NativeFeedForward(part) if part.activation == "relu" else part)


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        widen: Tensor,
        widen_bias: Tensor,
        narrow: Tensor,
        narrow_bias: Tensor,
        dropout: DropoutStruct,
    ) -> Tensor:
        hidden = matmul(x, widen.t(), widen_bias, relu=dropout)
        ctx.save_for_backward(x, widen, narrow, hidden)
        ctx.keep_scale = dropout.keep_scale
        return matmul(hidden, narrow.t(), narrow_bias)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        x, widen, narrow, hidden = ctx.saved_tensors
        grad_hidden = matmul(grad_output, narrow, gate=hidden, gate_scale=ctx.keep_scale)
        return (
            matmul(grad_hidden, widen),
            matmul(grad_hidden.t(), x), grad_hidden.sum(0),
            matmul(grad_output.t(), hidden), grad_output.sum(0),
            None,
        )  # fmt: skip
