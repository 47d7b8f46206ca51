"""Encoder and decoder of the rivals, with the interface of the Transformer's: only what mixes positions is different.

    encoder layer    recurrence or convolution
    decoder layer    recurrence or convolution, then cross-attention or the fixed vector

each inside a `Residual`. There is no feed-forward network, as in the models of their time, and recurrent layers need no
positional encoding. Cross-attention is dot-product attention (Luong et al. 2015). The fixed vector (Sutskever et al.
2014, Cho et al. 2014) is all that a decoder without cross-attention knows of the source, however long it is.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from heed.config import ModelConfig
from heed.model.attention import AttentionContext, AttentionFn, KeysValues, MultiHeadAttention
from heed.model.layers import Residual, final_norm
from heed.model.layout import AttentionPattern
from heed.model.positions import PositionalEncoding
from heed.model.rivals.convolutional import ConvolutionState, GatedConvolution
from heed.model.rivals.recurrent import Recurrence, RecurrentState

RivalState = RecurrentState | ConvolutionState


def _mixer(config: ModelConfig, *, causal: bool) -> nn.Module:
    if config.mixer == "convolution":
        return GatedConvolution(config, causal=causal)
    return Recurrence(config, causal=causal)


class FixedVector(nn.Module):
    """A linear map of the first and last hidden state of the source, the same for every target position."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.output = nn.Linear(2 * config.d_model, config.d_model)

    def keys_values(self, memory: Float[Tensor, "*sources D"]) -> KeysValues:
        """The memory itself, as keys and values of one head: the interface of `MultiHeadAttention`."""
        return memory[..., None, :], memory[..., None, :]

    def forward(
        self, _x: Float[Tensor, "*targets D"], keys_values: KeysValues, context: AttentionContext
    ) -> Float[Tensor, "*targets D"]:
        pattern = context.pattern
        rows, mask = pattern.keys.to_rows(keys_values[0])[:, :, 0], pattern.keys.token_mask  # (B, S, D) and (B, S)
        positions = torch.arange(mask.shape[1], device=mask.device)
        last = torch.where(mask, positions, -1).amax(1)
        first = torch.where(mask, positions, mask.shape[1]).amin(1).clamp(max=mask.shape[1] - 1)
        ends = [rows[torch.arange(len(rows), device=rows.device), index] for index in (first, last)]
        vector = self.output(torch.cat(ends, -1))[:, None]  # (B, 1, D)
        return pattern.queries.from_rows(vector.expand(-1, pattern.queries.token_mask.shape[1], -1))


class RivalEncoderLayer(nn.Module):
    """Recurrence in both directions, or a convolution centred on each token."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.mixer = _mixer(config, causal=False)
        self.around_mixer = Residual(config)

    def forward(self, x: Float[Tensor, "*sources D"], pattern: AttentionPattern) -> Float[Tensor, "*sources D"]:
        return self.around_mixer(x, partial(self.mixer, layout=pattern.queries))


class RivalEncoder(nn.Module):
    """N layers that read neighbouring tokens, and a final norm unless post-norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.positions = PositionalEncoding(config) if config.mixer == "convolution" else None
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(RivalEncoderLayer(config) for _ in range(config.encoder_layers))
        self.norm = final_norm(config)

    def forward(
        self, embedded: Float[Tensor, "*sources D"], pattern: AttentionPattern, _attend: AttentionFn
    ) -> Float[Tensor, "*sources D"]:
        """The memory: the encoder's output, one hidden state per source token."""
        x = self.dropout(embedded if self.positions is None else self.positions(embedded, pattern))
        for layer in self.layers:
            x = layer(x, pattern)
        return self.norm(x)


class RivalDecoderLayer(nn.Module):
    """Recurrence or convolution, then cross-attention or the fixed vector."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.mixer = _mixer(config, causal=True)
        self.around_mixer = Residual(config)
        self.context = MultiHeadAttention(config) if config.source_context == "attention" else FixedVector(config)
        self.around_context = Residual(config)

    def forward(
        self,
        x: Float[Tensor, "*targets D"],
        pattern: AttentionPattern,
        past: RivalState | None,
        memory: KeysValues,
        cross_context: AttentionContext,
    ) -> Float[Tensor, "*targets D"]:
        """past: the layer's state, None when all tokens are given at once."""
        x = self.around_mixer(x, partial(self.mixer, layout=pattern.queries, past=past))
        return self.around_context(x, partial(self.context, keys_values=memory, context=cross_context))


class RivalDecoder(nn.Module):
    """N decoder layers that read the tokens so far, and a final norm unless post-norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.mixer = config.mixer
        self.positions = PositionalEncoding(config) if config.mixer == "convolution" else None
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(RivalDecoderLayer(config) for _ in range(config.decoder_layers))
        self.norm = final_norm(config)

    def empty_cache(self) -> tuple[RivalState, ...]:
        """The state of each layer before the first token."""
        state = ConvolutionState if self.mixer == "convolution" else RecurrentState
        return tuple(state() for _ in self.layers)

    def keys_values(self, memory: Float[Tensor, "*sources D"]) -> tuple[KeysValues, ...]:
        """What each layer reads of the source, computed once per sentence."""
        layers = cast("Iterable[RivalDecoderLayer]", self.layers)
        return tuple(layer.context.keys_values(memory) for layer in layers)

    def forward(
        self,
        embedded: Float[Tensor, "*targets D"],
        pattern: AttentionPattern,
        attend: AttentionFn,
        past: Sequence[Any] = (),
        memory: Sequence[KeysValues] = (),
        cross_pattern: AttentionPattern | None = None,
    ) -> Float[Tensor, "*targets D"]:
        """The hidden states of the target tokens. past: the state of each layer; empty: all tokens at once."""
        x = self.dropout(embedded if self.positions is None else self.positions(embedded, pattern))
        cross_context = AttentionContext(cast("AttentionPattern", cross_pattern), attend)  # rivals have an encoder
        for layer, layer_past, layer_memory in zip_longest(self.layers, past, memory):
            x = layer(x, pattern, layer_past, layer_memory, cross_context)
        return self.norm(x)
