"""CPU decoder step with torch operators: fused QKV, prepacked weights, no module overhead.

One new token per row is so little arithmetic that overhead dominates: module calls, layouts, masks without effect,
copies. In a search all rows have the same length and no padding, so the position is one integer. The query, key and
value projections are fused into one matrix, the source's key and value projections of all layers into another, and each
is prepacked (`linear.py`) in float32 or int8. Sources are encoded packed, without padding. The KV cache is in
`backends/kv_cache.py`. The reference is `Transformer.step`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from heed.backends.fused_weights import cross_kv_projections, fuse_linear, qkv_projections
from heed.backends.kv_cache import DecoderState, LayerKV, PackedSources, PositionTable, split_by_layer
from heed.backends.torch.linear import LinearFn, MakeLinear
from heed.model.attention import MultiHeadAttention
from heed.model.layers import ACTIVATIONS, Decoder, DecoderLayer, FeedForward, Residual
from heed.model.positions import Rotation
from heed.model.transformer import Transformer, copy_sharing_weights, replace_modules


class TorchDecoder:
    """Stepper built from a snapshot of a model's weights; it holds no reference to the model.

    linear: builds a linear layer from weight and bias, in float32 or int8.
    """

    def __init__(self, model: Transformer, linear: MakeLinear) -> None:
        self._config = config = model.config
        decoder = cast("Decoder", model.decoder)
        layers = cast("Sequence[DecoderLayer]", list(decoder.layers))
        self._embedding, self._scale = model.vocabulary.embedding.weight.detach(), model.vocabulary.scale
        self._positions = PositionTable(decoder.positions, self._embedding)
        self._source_kv = linear(*fuse_linear(cross_kv_projections(decoder)))
        self._source_kv_shape = (len(layers), 2, config.heads, config.head_width)
        self._encoder = _encoder_with(model, linear)
        self._layers = [_Layer(layer, linear) for layer in layers]
        self._norm = _norm(decoder.norm)
        self._output = linear(*model.vocabulary.output_projection())

    @torch.no_grad()
    def start(self, src: Int[Tensor, "B S"]) -> DecoderState:
        """Encode the source, as `Transformer.start`."""
        sources = PackedSources.of(src, self._config.pad_id)
        if sources.is_padded:
            memory = self._encoder.encode(sources.ids, sources.layout)
        else:
            memory = self._encoder.encode(src).flatten(0, 1)
        return sources.initial_state(self._source_kv(memory), self._source_kv_shape)

    @torch.no_grad()
    def step(self, ids: Int[Tensor, "R"], state: DecoderState) -> tuple[Float[Tensor, "R V"], DecoderState]:
        """Logits after the next token of each row, and the state that includes it."""
        embedding, rotation = self._positions.at(state.length)
        before, state = state.columns, state.compact().reserve().advance()
        cache = state.kv_cache.data
        new = cache[:, :, :, :, before : state.columns]  # (L, 2, B, H, W, K)
        past = split_by_layer(cache[:, :, :, :, : state.columns], single_row=state.is_single_row)
        x, bias = self._embedding[ids].mul_(self._scale), state.attention_bias()
        if embedding is not None:
            x += embedding
        for layer, new_kv, past_kv, source in zip(
            self._layers, new.unbind(0), past, state.source_kv_by_layer, strict=True
        ):
            x = layer.step(x, _LayerContext(new_kv, past_kv, bias, source, state.source_bias, rotation))
        return self._output(self._norm(x)), state


class _LayerContext(NamedTuple):
    """What one layer attends to in one step."""

    new_kv: Float[Tensor, "2 B H W K"]  # view of the cache that receives the newest keys and values
    past_kv: LayerKV  # all keys and values of the target, the newest included
    bias: Float[Tensor, "*sources W columns"] | None  # additive mask of past_kv; none: nothing is masked
    source_kv: LayerKV
    source_bias: Float[Tensor, "*sources 1 S"] | None
    rotation: Rotation | None


class _Layer:
    """A decoder layer. The attention scale 1 / √d_k is folded into the query weights."""

    def __init__(self, layer: DecoderLayer, linear: MakeLinear) -> None:
        attention, cross = layer.attention, cast("MultiHeadAttention", layer.cross_attention)
        residuals = (layer.around_attention, cast("Residual", layer.around_cross_attention), layer.around_feed_forward)
        self._residual1, self._residual2, self._residual3 = (_residual(residual) for residual in residuals)
        scale = attention.split[1] ** -0.5
        self._qkv = linear(*fuse_linear(qkv_projections(attention), first_scale=scale))
        self._output = linear(attention.output.weight, attention.output.bias)
        self._q_cross = linear(*fuse_linear([cross.query], first_scale=scale))
        self._o_cross = linear(cross.output.weight, cross.output.bias)
        self._feed_forward = _feed_forward(layer.feed_forward, linear)

    def step(self, x: Float[Tensor, "R D"], context: _LayerContext) -> Float[Tensor, "R D"]:
        x = self._residual1(x, lambda y: self._self_attention(y, context))
        x = self._residual2(x, lambda y: self._cross_attention(y, context))
        return self._residual3(x, self._feed_forward)

    def _self_attention(self, y: Float[Tensor, "R D"], context: _LayerContext) -> Float[Tensor, "R D"]:
        _, sentences, heads, beam, width = context.new_kv.shape
        qkv = self._qkv(y).view(sentences, beam, 3, heads, width)
        if context.rotation is not None:
            qkv = torch.cat((context.rotation(qkv[:, :, :2]), qkv[:, :, 2:]), 2)
        qkv = qkv.permute(2, 0, 3, 1, 4)  # (3, B, H, W, K)
        context.new_kv.copy_(qkv[1:])
        return self._output(_attention(qkv[0], context.past_kv, context.bias))

    def _cross_attention(self, y: Float[Tensor, "R D"], context: _LayerContext) -> Float[Tensor, "R D"]:
        _, sentences, heads, beam, width = context.new_kv.shape
        queries = self._q_cross(y).view(sentences, beam, heads, width).transpose(1, 2)
        return self._o_cross(_attention(queries, context.source_kv, context.source_bias))


def _attention(
    queries: Float[Tensor, "B H W K"], keys_values: LayerKV, bias: Float[Tensor, "*sources #W columns"] | None
) -> Float[Tensor, "R D"]:
    """Attention with concatenated heads.

    torch's fused attention is faster for a single row, and several times slower for many.
    """
    keys, values = keys_values
    sentences, heads, beam, width = queries.shape
    if sentences * beam == 1:
        output = functional.scaled_dot_product_attention(queries, keys, values, bias, scale=1.0)
        return output.view(1, heads * width)
    queries = queries.reshape(-1, beam, width)
    scores = torch.bmm(queries, keys) if bias is None else torch.baddbmm(bias, queries, keys)
    output = torch.bmm(torch.softmax(scores, -1), values).view(sentences, heads, beam, width)
    return output.transpose(1, 2).reshape(sentences * beam, heads * width)


def _residual(residual: Residual) -> Callable[[Tensor, LinearFn], Tensor]:
    norm = _norm(residual.norm)
    if residual.order == "post":
        return lambda x, sublayer: norm(sublayer(x).add_(x))
    if residual.outer_norm is None:
        return lambda x, sublayer: sublayer(norm(x)).add_(x)
    outer_norm = _norm(residual.outer_norm)
    return lambda x, sublayer: outer_norm(sublayer(norm(x))).add_(x)


def _feed_forward(part: FeedForward, linear: MakeLinear) -> LinearFn:
    ffn_in, ffn_out = (linear(layer.weight, layer.bias) for layer in (part.widen, part.narrow))
    if part.gate is not None:
        gate = linear(part.gate.weight, part.gate.bias)
        return lambda x: ffn_out(functional.silu(gate(x)).mul_(ffn_in(x)))
    activate = torch.relu_ if part.activation == "relu" else ACTIVATIONS[part.activation]
    return lambda x: ffn_out(activate(ffn_in(x)))


def _norm(norm: nn.Module) -> LinearFn:
    if not isinstance(norm, nn.LayerNorm):
        return norm  # post-norm stacks have no final norm: an identity
    weight, bias, shape, eps = norm.weight.detach(), norm.bias.detach(), norm.normalized_shape, norm.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


class _LinearModule(nn.Module):
    """A linear function in place of an `nn.Linear`."""

    def __init__(self, function: LinearFn) -> None:
        super().__init__()
        self._function = function

    def forward(self, x: Float[Tensor, "*tokens inputs"]) -> Float[Tensor, "*tokens outputs"]:
        return self._function(x)


def _encoder_with(model: Transformer, linear: MakeLinear) -> Transformer:
    """A copy of the model without its decoder, whose encoder uses these linear layers."""
    copied = copy_sharing_weights(model).eval()
    copied.decoder = None
    encoder = cast("nn.Module", copied.encoder)
    replace_modules(encoder, nn.Linear, lambda part: _LinearModule(linear(part.weight, part.bias)))
    return copied
