"""Feed-forward network, encoder and decoder layers, and the two stacks of them (paper, section 3 and figure 1).

Enters: embedded tokens in any layout, and a `Sight`, the attention pattern. Leaves: hidden states in the same layout.
Nothing here knows how sentences are laid out.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import zip_longest
from typing import cast

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from heed.config import ModelConfig
from heed.model.attention import Attend, KeysValues, MultiHeadAttention, View
from heed.model.cache import Past
from heed.model.layout import Sight
from heed.model.positions import PositionCode

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "swish": functional.silu,
}


class FeedForward(nn.Module):
    """The position-wise feed-forward network (paper, section 3.3): each token on its own.

    FFN(x) = max(0, x W₁ + b₁) W₂ + b₂; with GELU or swish(x) = x / (1 + e⁻ˣ) in the place of max(0, x); or SwiGLU,
    (swish(x W_g + b_g) ⊙ (x W₁ + b₁)) W₂ + b₂.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.widen = nn.Linear(config.d_model, config.d_ff)
        self.gate = nn.Linear(config.d_model, config.d_ff) if config.activation == "swiglu" else None
        self.narrow = nn.Linear(config.d_ff, config.d_model)
        self.dropout = nn.Dropout(config.activation_dropout)

    def forward(self, x: Float[Tensor, "*tokens D"]) -> Float[Tensor, "*tokens D"]:
        """Each token's hidden state, widened to d_ff, activated and projected back."""
        return self.narrow(self.dropout(self._activate(x)))

    def _activate(self, x: Float[Tensor, "*tokens D"]) -> Float[Tensor, "*tokens F"]:
        if self.gate is not None:
            return functional.silu(self.gate(x)) * self.widen(x)
        return ACTIVATIONS[self.activation](self.widen(x))


class Residual(nn.Module):
    """Residual sum, layer norm and dropout around a sub-layer, in one of three orders."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.order = config.norm
        self.norm = nn.LayerNorm(config.d_model, config.norm_eps)
        self.outer_norm = nn.LayerNorm(config.d_model, config.norm_eps) if self.order == "sandwich" else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Float[Tensor, "*tokens D"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "*tokens D"]:
        """What the sub-layer makes of x, added to x."""
        if self.order == "post":
            return self.norm(x + self.dropout(sublayer(x)))
        if self.outer_norm is None:
            return x + self.dropout(sublayer(self.norm(x)))
        return x + self.dropout(self.outer_norm(sublayer(self.norm(x))))


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(config)
        self.around_attention = Residual(config)
        self.feed_forward = FeedForward(config)
        self.around_feed_forward = Residual(config)

    def forward(self, x: Float[Tensor, "*sources D"], view: View) -> Float[Tensor, "*sources D"]:
        """Every token looks at every token of its sentence."""
        x = self.around_attention(x, partial(self.attention.among, view=view))
        return self.around_feed_forward(x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Masked self-attention, then attention to the encoder's memory if there is one, then feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(config)
        self.around_attention = Residual(config)
        self.cross_attention = MultiHeadAttention(config) if config.has_encoder else None
        self.around_cross_attention = Residual(config) if config.has_encoder else None
        self.feed_forward = FeedForward(config)
        self.around_feed_forward = Residual(config)

    def forward(
        self,
        x: Float[Tensor, "*targets D"],
        view: View,
        past: Past | None,
        memory: KeysValues | None,
        across: View | None,
    ) -> Float[Tensor, "*targets D"]:
        """Every token looks at those before it, in `past` and in this pass, then at the source."""

        def look_back(y: Tensor) -> Tensor:
            if past is None:
                return self.attention.among(y, view)
            return self.attention(y, past.append(self.attention.keys_values(y, view.rotation)), view)

        x = self.around_attention(x, look_back)
        if self.cross_attention is not None and self.around_cross_attention is not None:
            look_across = partial(self.cross_attention, context=memory, view=across)
            x = self.around_cross_attention(x, look_across)
        return self.around_feed_forward(x, self.feed_forward)


class Encoder(nn.Module):
    """Positions, then N encoder layers; a last norm where the layers' outputs are not normalised."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.positions = PositionCode(config)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.norm = _last_norm(config)

    def forward(
        self, embedded: Float[Tensor, "*sources D"], sight: Sight, attend: Attend
    ) -> Float[Tensor, "*sources D"]:
        """The memory: every source token in the light of its sentence."""
        x = self.dropout(self.positions(embedded, sight))
        view = View(sight, attend, self.positions.rotation(sight, x.dtype))
        for layer in self.layers:
            x = layer(x, view)
        return self.norm(x)


class Decoder(nn.Module):
    """Positions, then M decoder layers; a last norm where the layers' outputs are not normalised."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.positions = PositionCode(config)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.norm = _last_norm(config)

    def keys_values(self, memory: Float[Tensor, "*sources D"]) -> tuple[KeysValues, ...]:
        """The memory as each layer attends to it: the same for every step of decoding."""
        across = (layer.cross_attention for layer in cast("Iterable[DecoderLayer]", self.layers))
        return tuple(attention.keys_values(memory) for attention in across if attention is not None)

    def forward(
        self,
        embedded: Float[Tensor, "*targets D"],
        sight: Sight,
        attend: Attend,
        past: Sequence[Past] = (),
        memory: Sequence[KeysValues] = (),
        cross_sight: Sight | None = None,
    ) -> Float[Tensor, "*targets D"]:
        """Every target token in the light of those before it and of the source.

        past and memory have one entry a layer, or none: nothing came before this pass, there is no source.
        """
        x = self.dropout(self.positions(embedded, sight))
        view = View(sight, attend, self.positions.rotation(sight, x.dtype))
        across = None if cross_sight is None else View(cross_sight, attend)
        for layer, own, source in zip_longest(self.layers, past, memory):
            x = layer(x, view, own, source, across)
        return self.norm(x)


def _last_norm(config: ModelConfig) -> nn.Module:
    return nn.Identity() if config.norm == "post" else nn.LayerNorm(config.d_model, config.norm_eps)
