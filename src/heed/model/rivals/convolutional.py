"""Gated convolution as in ConvS2S (Gehring et al. 2017): a token and its neighbours, through a gated linear unit.

Enters: hidden states in any layout. Leaves: hidden states in the same layout. An encoder's convolution is centred on
its token; a decoder's reads the token and those before it, and can continue from a `ConvolutionState`.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from heed.config import ModelConfig
from heed.model.layout import Layout
from heed.model.rivals.rows import over_rows


class ConvolutionState:
    """The last inputs of one decoder layer: the convolutional counterpart of a layer's KV cache."""

    def __init__(self, inputs: Float[Tensor, "R C D"] | None = None) -> None:
        self.inputs = inputs  # C = kernel size - 1; None: no token yet

    def copy(self) -> "ConvolutionState":
        return ConvolutionState(self.inputs)

    def select(self, rows: Int[Tensor, "R"]) -> "ConvolutionState":
        """The state of these rows."""
        return self if self.inputs is None else ConvolutionState(self.inputs.index_select(0, rows))


class GatedConvolution(nn.Module):
    """The convolution of one layer: (X * W + b) ⊗ σ(X * V + c)."""

    def __init__(self, config: ModelConfig, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.convolution = nn.Conv1d(config.d_model, 2 * config.d_model, config.kernel_size)

    def forward(
        self, x: Float[Tensor, "*tokens D"], layout: Layout, past: ConvolutionState | None = None
    ) -> Float[Tensor, "*tokens D"]:
        """past: the last inputs before these tokens, updated in place; None: all tokens are given at once."""
        if past is None:
            return over_rows(x, layout, self._whole)
        return layout.from_rows(self._continue(layout.to_rows(x), layout.token_mask, past))

    def _whole(self, rows: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        before = self._neighbours if self.causal else self._neighbours // 2
        padded = functional.pad(rows, (0, 0, before, self._neighbours - before))
        return self._gated(padded)

    def _continue(
        self, rows: Float[Tensor, "R T D"], mask: Bool[Tensor, "R T"], past: ConvolutionState
    ) -> Float[Tensor, "R T D"]:
        """One token after the other; padding is not a neighbour of any token."""
        inputs = past.inputs
        if inputs is None:
            inputs = rows.new_zeros(len(rows), self._neighbours, rows.shape[-1])
        outputs = []
        for x, is_token in zip(rows.split(1, 1), mask.unbind(1), strict=True):
            window = torch.cat((inputs, x), 1)
            outputs.append(self._gated(window))
            inputs = torch.where(is_token[:, None, None], window[:, 1:], inputs)
        past.inputs = inputs
        return torch.cat(outputs, 1)

    def _gated(self, rows: Float[Tensor, "B TC D"]) -> Float[Tensor, "B T D"]:
        """As one matmul over windows of tokens: cuDNN plans a convolution anew for every shape of a batch."""
        kernel = self.convolution.weight  # (2D, D, k)
        length = rows.shape[1] - self._neighbours
        windows = torch.cat([rows[:, offset : offset + length] for offset in range(kernel.shape[2])], -1)
        weight = kernel.transpose(1, 2).flatten(1)  # (2D, kD), in the order of the windows
        return functional.glu(functional.linear(windows, weight, self.convolution.bias), -1)

    @property
    def _neighbours(self) -> int:
        return self.convolution.kernel_size[0] - 1
