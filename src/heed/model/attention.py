"""Scaled dot-product attention and multi-head attention (paper, section 3.2).

    Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V

The equation is implemented twice, with one signature: `plain_attention` reads like the paper and materialises the
attention weights; `fused_attention` calls torch's fused kernels, which do not. A test proves them equal. Which one runs
is an argument of the model's call, so observing attention means passing another function. Knows nothing of layers or
vocabularies.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from heed.config import ModelConfig
from heed.model.layout import AttentionPattern
from heed.model.positions import Rotation

AttentionFn: TypeAlias = Callable[[Tensor, Tensor, Tensor, AttentionPattern, float], Tensor]
KeysValues: TypeAlias = tuple[Float[Tensor, "*sources H K"], Float[Tensor, "*sources H K"]]

# All of torch's kernels that take a mask, except cuDNN's: it plans anew for every shape, half a second each on an H200,
# and batches of sentences hardly ever have the same shape twice.
_SDPA_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def attention_weights(
    queries: Float[Tensor, "*targets H K"], keys: Float[Tensor, "*sources H K"], pattern: AttentionPattern
) -> Float[Tensor, "B H T S"]:
    """softmax(Q Kᵀ / √d_k) over the keys each query may attend to; all zero for a fully masked query."""
    q, k = _by_head(pattern.queries.to_rows(queries)), _by_head(pattern.keys.to_rows(keys))
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    masked = ~pattern.mask[:, None]  # (B, 1, T, S)
    # The most negative finite number, not -inf: a fully masked row then has finite values and gradients.
    weights = scores.masked_fill(masked, torch.finfo(scores.dtype).min).softmax(-1)
    return weights.masked_fill(masked, 0.0)


def plain_attention(
    queries: Float[Tensor, "*targets H K"],
    keys: Float[Tensor, "*sources H K"],
    values: Float[Tensor, "*sources H K"],
    pattern: AttentionPattern,
    dropout: float,
) -> Float[Tensor, "*targets H K"]:
    """softmax(Q Kᵀ / √d_k) V as the paper writes it, with the weights materialised."""
    weights = functional.dropout(attention_weights(queries, keys, pattern), dropout)
    heads = weights @ _by_head(pattern.keys.to_rows(values))
    return pattern.queries.from_rows(heads.transpose(1, 2))


def fused_attention(
    queries: Float[Tensor, "*targets H K"],
    keys: Float[Tensor, "*sources H K"],
    values: Float[Tensor, "*sources H K"],
    pattern: AttentionPattern,
    dropout: float,
) -> Float[Tensor, "*targets H K"]:
    """Attention through torch's fused kernels, which do not materialise the weights, except on a CPU with dropout."""
    with sdpa_kernel(_SDPA_BACKENDS):
        heads = functional.scaled_dot_product_attention(
            _by_head(pattern.queries.to_rows(queries)),
            _by_head(pattern.keys.to_rows(keys)),
            _by_head(pattern.keys.to_rows(values)),
            attn_mask=pattern.mask[:, None],
            dropout_p=dropout,
        )
    if pattern.fully_masked is not None:  # where the kernels differ
        heads = heads.masked_fill(pattern.fully_masked[:, None, :, None], 0.0)
    return pattern.queries.from_rows(heads.transpose(1, 2))


def _by_head(x: Float[Tensor, "B T H K"]) -> Float[Tensor, "B H T K"]:
    return x.transpose(1, 2)


@dataclass(frozen=True)
class AttentionContext:
    """How a stack of layers attends: the mask, the attention function and, in self-attention, the rotary positions."""

    pattern: AttentionPattern
    attend: AttentionFn
    rotation: Rotation | None = None


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, …, head_h) W_O, each head with its own projections W_Q, W_K and W_V.

    With a smaller d_k, for comparison, queries and keys are padded with zeros to the width of the values: attention
    functions know one width, and zeros add nothing to a dot product.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.split = (config.heads, config.head_width)
        self.dropout = config.attention_dropout
        self.key_split = (config.heads, config.key_width)
        divisor = 1.0 if config.without == "scaling" else math.sqrt(config.key_width)
        self.query_scale = math.sqrt(config.head_width) / divisor  # the attention function divides by √head_width
        self.query = nn.Linear(config.d_model, config.heads * config.key_width)
        self.key = nn.Linear(config.d_model, config.heads * config.key_width)
        self.value = nn.Linear(config.d_model, config.d_model)
        self.output = nn.Linear(config.d_model, config.d_model)

    def keys_values(self, x: Float[Tensor, "*sources D"], rotation: Rotation | None = None) -> KeysValues:
        """The keys and values of hidden states; rotation: rotary positions of the keys."""
        keys = self._padded(self.key(x).unflatten(-1, self.key_split))
        values = self.value(x).unflatten(-1, self.split)
        return keys if rotation is None else rotation(keys), values

    def forward(
        self, x: Float[Tensor, "*targets D"], keys_values: KeysValues, context: AttentionContext
    ) -> Float[Tensor, "*targets D"]:
        """Each token's attention to these keys and values: the heads concatenated and projected by W_O."""
        queries = self._padded(self.query(x).unflatten(-1, self.key_split))
        if context.rotation is not None:
            queries = context.rotation(queries)
        if self.query_scale != 1.0:
            queries = queries * self.query_scale
        heads = context.attend(queries, *keys_values, context.pattern, self.dropout if self.training else 0.0)
        return self.output(heads.flatten(-2))

    def _padded(self, heads: Float[Tensor, "*tokens H d_k"]) -> Float[Tensor, "*tokens H K"]:
        missing = self.split[1] - self.key_split[1]
        return functional.pad(heads, (0, missing)) if missing else heads

    def self_attend(self, x: Float[Tensor, "*tokens D"], context: AttentionContext) -> Float[Tensor, "*tokens D"]:
        """Self-attention: each token attends to the tokens of its own sequence."""
        return self(x, self.keys_values(x, context.rotation), context)
