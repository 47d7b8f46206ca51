"""The position-wise feed-forward network (paper, section 3.3).

    FFN(x) = max(0, x W₁ + b₁) W₂ + b₂          swiglu: (swish(x W_g + b_g) ⊙ (x W₁ + b₁)) W₂ + b₂

where swish(x) = x / (1 + e⁻ˣ), which may also stand in the place of max(0, x), as GELU may.

Each token is worked on alone: attention has gathered what it needs to know, this decides what to make of it.
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from heed.config import ModelConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "swish": functional.silu,
}


class FeedForward(nn.Module):
    """Wider, a non-linearity, and back."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.widen = nn.Linear(config.d_model, config.d_ff)
        self.gate = nn.Linear(config.d_model, config.d_ff) if config.activation == "swiglu" else None
        self.narrow = nn.Linear(config.d_ff, config.d_model)
        self.dropout = nn.Dropout(config.activation_dropout)

    def forward(self, x: Float[Tensor, "*tokens D"]) -> Float[Tensor, "*tokens D"]:
        """Each token's vector, transformed."""
        return self.narrow(self.dropout(self._activate(x)))

    def _activate(self, x: Float[Tensor, "*tokens D"]) -> Float[Tensor, "*tokens F"]:
        if self.gate is not None:
            return functional.silu(self.gate(x)) * self.widen(x)
        return ACTIVATIONS[self.activation](self.widen(x))
