"""Feed-forward network, encoder and decoder layers, and their stacks (paper, section 3 and figure 1).

Enters: embedded tokens in any layout, and an `AttentionPattern`. Leaves: hidden states in the same layout. Nothing here
depends on the layout.
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
    "none": lambda x: x,
}


class FeedForward(nn.Module):
    """The position-wise feed-forward network (paper, section 3.3), with W₁ = `widen` and W₂ = `narrow`.

    relu      FFN(x) = max(0, x W₁ + b₁) W₂ + b₂
    gelu      GELU instead of max(0, x)
    swish     swish(x) = x · sigmoid(x) instead of max(0, x)
    swiglu    FFN(x) = (swish(x W_g + b_g) ⊙ (x W₁ + b₁)) W₂ + b₂

    Without its activation, for comparison, FFN(x) = (x W₁ + b₁) W₂ + b₂.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = "none" if config.without == "activation" else config.activation
        self.widen = nn.Linear(config.d_model, config.d_ff)
        self.gate = nn.Linear(config.d_model, config.d_ff) if self.activation == "swiglu" else None
        self.narrow = nn.Linear(config.d_ff, config.d_model)
        self.dropout = nn.Dropout(config.activation_dropout)

    def forward(self, x: Float[Tensor, "*tokens D"]) -> Float[Tensor, "*tokens D"]:
        return self.narrow(self.dropout(self._activate(x)))

    def _activate(self, x: Float[Tensor, "*tokens D"]) -> Float[Tensor, "*tokens F"]:
        if self.gate is not None:
            return functional.silu(self.gate(x)) * self.widen(x)
        return ACTIVATIONS[self.activation](self.widen(x))


class Residual(nn.Module):
    """Residual connection, layer norm and dropout around a sub-layer.

    post        norm(x + dropout(sublayer(x))), the paper's
    pre         x + dropout(sublayer(norm(x)))
    sandwich    x + dropout(outer_norm(sublayer(norm(x))))

    Without residuals, for comparison, `x +` is left out.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.order = config.norm
        self.norm = nn.LayerNorm(config.d_model, config.norm_eps)
        self.outer_norm = nn.LayerNorm(config.d_model, config.norm_eps) if self.order == "sandwich" else None
        self.dropout = nn.Dropout(config.dropout)
        self.adds_input = config.without != "residuals"

    def forward(
        self, x: Float[Tensor, "*tokens D"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "*tokens D"]:
        if self.order == "post":
            return self.norm(self._add(x, self.dropout(sublayer(x))))
        if self.outer_norm is None:
            return self._add(x, self.dropout(sublayer(self.norm(x))))
        return self._add(x, self.dropout(self.outer_norm(sublayer(self.norm(x)))))

    def _add(self, x: Float[Tensor, "*tokens D"], y: Float[Tensor, "*tokens D"]) -> Float[Tensor, "*tokens D"]:
        return x + y if self.adds_input else y


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each inside a `Residual`.

    Without feed-forward, for comparison, there is neither it nor its `Residual`: code that needs them gets layers from
    `Transformer.attention_stacks`, which refuses such models.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(config)
        self.around_attention = Residual(config)
        self.has_feed_forward = config.without != "feed-forward"
        self.feed_forward = cast("FeedForward", FeedForward(config) if self.has_feed_forward else None)
        self.around_feed_forward = cast("Residual", Residual(config) if self.has_feed_forward else None)

    def forward(self, x: Float[Tensor, "*sources D"], context: AttentionContext) -> Float[Tensor, "*sources D"]:
        x = self.around_attention(x, partial(self.attention.self_attend, context=context))
        return self.around_feed_forward(x, self.feed_forward) if self.has_feed_forward else x


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention to the memory (unless decoder-only), then feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(config)
        self.around_attention = Residual(config)
        self.cross_attention = MultiHeadAttention(config) if config.has_encoder else None
        self.around_cross_attention = Residual(config) if config.has_encoder else None
        self.has_feed_forward = config.without != "feed-forward"
        self.feed_forward = cast("FeedForward", FeedForward(config) if self.has_feed_forward else None)
        self.around_feed_forward = cast("Residual", Residual(config) if self.has_feed_forward else None)

    def forward(
        self,
        x: Float[Tensor, "*targets D"],
        context: AttentionContext,
        past: LayerKVCache | None,
        memory: KeysValues | None,
        cross_context: AttentionContext | None,
    ) -> Float[Tensor, "*targets D"]:
        """past: the layer's KV cache, None when all tokens are given at once. memory: keys and values of the source."""

        def self_attention(y: Tensor) -> Tensor:
            if past is None:
                return self.attention.self_attend(y, context)
            return self.attention(y, past.append(self.attention.keys_values(y, context.rotation)), context)

        x = self.around_attention(x, self_attention)
        if self.cross_attention is not None and self.around_cross_attention is not None:
            cross_attention = partial(self.cross_attention, keys_values=memory, context=cross_context)
            x = self.around_cross_attention(x, cross_attention)
        return self.around_feed_forward(x, self.feed_forward) if self.has_feed_forward else x


class Encoder(nn.Module):
    """Positional encoding, N encoder layers, and a final norm unless post-norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.positions = PositionalEncoding(config)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.norm = final_norm(config)

    def forward(
        self, embedded: Float[Tensor, "*sources D"], pattern: AttentionPattern, attend: AttentionFn
    ) -> Float[Tensor, "*sources D"]:
        """The memory: the encoder's output, one hidden state per source token."""
        x = self.dropout(self.positions(embedded, pattern))
        context = AttentionContext(pattern, attend, self.positions.rotation(pattern, x.dtype))
        for layer in self.layers:
            x = layer(x, context)
        return self.norm(x)


class Decoder(nn.Module):
    """Positional encoding, N decoder layers, and a final norm unless post-norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.positions = PositionalEncoding(config)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.norm = final_norm(config)

    def empty_cache(self) -> tuple[LayerKVCache, ...]:
        """The KV cache of each layer before the first token."""
        return tuple(LayerKVCache() for _ in self.layers)

    def keys_values(self, memory: Float[Tensor, "*sources D"]) -> tuple[KeysValues, ...]:
        """Each layer's cross-attention keys and values of the memory, computed once per sentence."""
        attentions = (layer.cross_attention for layer in cast("Iterable[DecoderLayer]", self.layers))
        return tuple(attention.keys_values(memory) for attention in attentions if attention is not None)

    def forward(
        self,
        embedded: Float[Tensor, "*targets D"],
        pattern: AttentionPattern,
        attend: AttentionFn,
        past: Sequence[LayerKVCache] = (),
        memory: Sequence[KeysValues] = (),
        cross_pattern: AttentionPattern | None = None,
    ) -> Float[Tensor, "*targets D"]:
        """The hidden states of the target tokens.

        past: the KV cache of each layer; empty: all tokens are given at once. memory: the keys and values of the source
        for each layer; empty: decoder-only.
        """
        x = self.dropout(self.positions(embedded, pattern))
        context = AttentionContext(pattern, attend, self.positions.rotation(pattern, x.dtype))
        cross_context = None if cross_pattern is None else AttentionContext(cross_pattern, attend)
        for layer, layer_past, layer_memory in zip_longest(self.layers, past, memory):
            x = layer(x, context, layer_past, layer_memory, cross_context)
        return self.norm(x)


def final_norm(config: ModelConfig) -> nn.Module:
    """The norm after the last layer, unless post-norm."""
    return nn.Identity() if config.norm == "post" else nn.LayerNorm(config.d_model, config.norm_eps)
