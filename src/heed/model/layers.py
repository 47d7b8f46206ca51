"""Feed-forward network, encoder and decoder layers, and the two stacks of them (paper, section 3 and figure 1).

Enters: embedded tokens in any layout, and an `AttentionPattern`. Leaves: hidden states in the same layout. Nothing here
knows how sentences are laid out.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import zip_longest
from typing import cast

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from heed.config import ModelConfig
from heed.model.attention import AttentionContext, AttentionFn, KeysValues, MultiHeadAttention
from heed.model.cache import LayerKVCache
from heed.model.layout import AttentionPattern
from heed.model.positions import PositionalEncoding

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

    def forward(self, x: Float[Tensor, "*sources D"], context: AttentionContext) -> Float[Tensor, "*sources D"]:
        """Every token attends to every token of its sentence, then the feed-forward network."""
        x = self.around_attention(x, partial(self.attention.self_attend, context=context))
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
        context: AttentionContext,
        past: LayerKVCache | None,
        memory: KeysValues | None,
        across: AttentionContext | None,
    ) -> Float[Tensor, "*targets D"]:
        """Every token attends to those before it, in `past` and in this pass, then to the source."""

        def self_attention(y: Tensor) -> Tensor:
            if past is None:
                return self.attention.self_attend(y, context)
            return self.attention(y, past.append(self.attention.keys_values(y, context.rotation)), context)

        x = self.around_attention(x, self_attention)
        if self.cross_attention is not None and self.around_cross_attention is not None:
            cross_attention = partial(self.cross_attention, keys_values=memory, context=across)
            x = self.around_cross_attention(x, cross_attention)
        return self.around_feed_forward(x, self.feed_forward)


class Encoder(nn.Module):
    """Positions, then N encoder layers; a last norm where the layers' outputs are not normalised."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.positions = PositionalEncoding(config)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.norm = _last_norm(config)

    def forward(
        self, embedded: Float[Tensor, "*sources D"], pattern: AttentionPattern, attend: AttentionFn
    ) -> Float[Tensor, "*sources D"]:
        """The memory: contextual hidden states of the source tokens."""
        x = self.dropout(self.positions(embedded, pattern))
        context = AttentionContext(pattern, attend, self.positions.rotation(pattern, x.dtype))
        for layer in self.layers:
            x = layer(x, context)
        return self.norm(x)


class Decoder(nn.Module):
    """Positions, then M decoder layers; a last norm where the layers' outputs are not normalised."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.positions = PositionalEncoding(config)
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
        pattern: AttentionPattern,
        attend: AttentionFn,
        past: Sequence[LayerKVCache] = (),
        memory: Sequence[KeysValues] = (),
        cross_pattern: AttentionPattern | None = None,
    ) -> Float[Tensor, "*targets D"]:
        """Hidden states of the target tokens, given those before them and the source.

        past and memory have one entry per layer; empty: nothing came before this pass, there is no source.
        """
        x = self.dropout(self.positions(embedded, pattern))
        context = AttentionContext(pattern, attend, self.positions.rotation(pattern, x.dtype))
        across = None if cross_pattern is None else AttentionContext(cross_pattern, attend)
        for layer, own, source in zip_longest(self.layers, past, memory):
            x = layer(x, context, own, source, across)
        return self.norm(x)


def _last_norm(config: ModelConfig) -> nn.Module:
    return nn.Identity() if config.norm == "post" else nn.LayerNorm(config.d_model, config.norm_eps)
