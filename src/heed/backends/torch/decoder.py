"""CPU decoder step with torch operators: fused QKV, prepacked weights, no module overhead.

One new token per row is so little arithmetic that what surrounds it takes longer: calls of modules, layouts, masks that
hide nothing, copies. In a search all rows are as long as each other and none is padded, so a position is one number.
What can be done once is done when the decoder is made: the query, key and value projections become one matrix, those of
the source's keys and values in all layers another, and each is prepacked (`linear.py`) in float32 or int8. Sources are
encoded packed, without padding. The KV cache is in `backends/kv_cache.py`. The reference is `Transformer.step`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from heed.backends.fused_weights import cross_kv_projections, joined, queries_keys_values
from heed.backends.kv_cache import Context, Hypotheses, PackedSources, PositionTable, by_layer
from heed.backends.torch.linear import LinearFn, MakeLinear
from heed.model.attention import MultiHeadAttention
from heed.model.layers import ACTIVATIONS, Decoder, DecoderLayer, FeedForward, Residual
from heed.model.positions import Rotation
from heed.model.transformer import Transformer, copy_sharing_weights, replace_modules


class TorchDecoder:
    """Steps as a model's decoder does, with the weights that the model had when this was made; it keeps no model.

    linear: what makes a linear layer of a weight and a bias, in float32 or int8.
    """

    def __init__(self, model: Transformer, linear: MakeLinear) -> None:
        self._config = config = model.config
        decoder = cast("Decoder", model.decoder)
        layers = cast("Sequence[DecoderLayer]", list(decoder.layers))
        self._words, self._scale = model.vocabulary.embedding.weight.detach(), model.vocabulary.scale
        self._positions = PositionTable(decoder.positions, self._words)
        self._memory = linear(*joined(cross_kv_projections(decoder)))
        self._memory_shape = (len(layers), 2, config.heads, config.head_width)
        self._encoding = _with_linear(model, linear)
        self._layers = [_Layer(layer, linear) for layer in layers]
        self._norm = _norm(decoder.norm)
        self._output = linear(*model.vocabulary.output_projection())

    @torch.no_grad()
    def start(self, src: Int[Tensor, "B S"]) -> Hypotheses:
        """The source encoded, as `Transformer.start` does it."""
        sources = PackedSources.of(src, self._config.pad_id)
        if sources.is_padded:
            encoded = self._encoding.encode(sources.ids, sources.layout)
        else:
            encoded = self._encoding.encode(src).flatten(0, 1)
        return sources.hypotheses(self._memory(encoded), self._memory_shape)

    @torch.no_grad()
    def step(self, ids: Int[Tensor, "R"], state: Hypotheses) -> tuple[Float[Tensor, "R V"], Hypotheses]:
        """Logits after the next token of each row, and the state that knows it."""
        place, rotation = self._positions.at(state.length)
        before, state = state.columns, state.together().with_room().longer()
        room = state.room.numbers
        news = room[:, :, :, :, before : state.columns]  # (L, 2, B, H, W, K)
        past, mask = by_layer(room[:, :, :, :, : state.columns], alone=state.alone), state.mask()
        x = self._words[ids].mul_(self._scale)
        if place is not None:
            x += place
        for layer, new, own, source in zip(self._layers, news.unbind(0), past, state.sources, strict=True):
            x = layer.step(x, _Seen(new, own, mask, source, state.hidden, rotation))
        return self._output(self._norm(x)), state


class _Seen(NamedTuple):
    """What a layer sees at one step."""

    news: Float[Tensor, "2 B H W K"]  # where the newest keys and values go
    past: Context  # all of them, these included
    mask: Float[Tensor, "*sources W columns"] | None  # added to the scores; none: all are seen
    source: Context
    hidden: Float[Tensor, "*sources 1 S"] | None
    rotation: Rotation | None


class _Layer:
    """A decoder layer, its weights at hand. The scale of the scores, 1 / √d_k, is part of the queries' weights."""

    def __init__(self, layer: DecoderLayer, linear: MakeLinear) -> None:
        back, across = layer.attention, cast("MultiHeadAttention", layer.cross_attention)
        around = (layer.around_attention, cast("Residual", layer.around_cross_attention), layer.around_feed_forward)
        self._first, self._second, self._third = (_around(one) for one in around)
        scale = back.split[1] ** -0.5
        self._own = linear(*joined(queries_keys_values(back), first_times=scale))
        self._output = linear(back.output.weight, back.output.bias)
        self._ask = linear(*joined([across.query], first_times=scale))
        self._gather = linear(across.output.weight, across.output.bias)
        self._feed_forward = _feed_forward(layer.feed_forward, linear)

    def step(self, x: Float[Tensor, "R D"], seen: _Seen) -> Float[Tensor, "R D"]:
        """The newest token of each hypothesis, in the light of those before it and of the source."""
        x = self._first(x, lambda y: self._look_back(y, seen))
        x = self._second(x, lambda y: self._look_across(y, seen))
        return self._third(x, self._feed_forward)

    def _look_back(self, y: Float[Tensor, "R D"], seen: _Seen) -> Float[Tensor, "R D"]:
        _, sentences, heads, wide, width = seen.news.shape
        own = self._own(y).view(sentences, wide, 3, heads, width)
        if seen.rotation is not None:
            own = torch.cat((seen.rotation(own[:, :, :2]), own[:, :, 2:]), 2)
        own = own.permute(2, 0, 3, 1, 4)  # (3, B, H, W, K)
        seen.news.copy_(own[1:])
        return self._output(_attended(own[0], seen.past, seen.mask))

    def _look_across(self, y: Float[Tensor, "R D"], seen: _Seen) -> Float[Tensor, "R D"]:
        _, sentences, heads, wide, width = seen.news.shape
        queries = self._ask(y).view(sentences, wide, heads, width).transpose(1, 2)
        return self._gather(_attended(queries, seen.source, seen.hidden))


def _attended(
    queries: Float[Tensor, "B H W K"], context: Context, mask: Float[Tensor, "*sources #W columns"] | None
) -> Float[Tensor, "R D"]:
    """What each hypothesis gathers, its heads side by side.

    Torch's fused attention is quicker for one row alone, and several times slower for many.
    """
    keys, values = context
    sentences, heads, wide, width = queries.shape
    if sentences * wide == 1:
        alone = functional.scaled_dot_product_attention(queries, keys, values, mask, scale=1.0)
        return alone.view(1, heads * width)
    queries = queries.reshape(-1, wide, width)
    scores = torch.bmm(queries, keys) if mask is None else torch.baddbmm(mask, queries, keys)
    found = torch.bmm(torch.softmax(scores, -1), values).view(sentences, heads, wide, width)
    return found.transpose(1, 2).reshape(sentences * wide, heads * width)


def _around(residual: Residual) -> Callable[[Tensor, LinearFn], Tensor]:
    norm = _norm(residual.norm)
    if residual.order == "post":
        return lambda x, sublayer: norm(sublayer(x).add_(x))
    if residual.outer_norm is None:
        return lambda x, sublayer: sublayer(norm(x)).add_(x)
    outer = _norm(residual.outer_norm)
    return lambda x, sublayer: outer(sublayer(norm(x))).add_(x)


def _feed_forward(part: FeedForward, linear: MakeLinear) -> LinearFn:
    widen, narrow = (linear(one.weight, one.bias) for one in (part.widen, part.narrow))
    if part.gate is not None:
        gate = linear(part.gate.weight, part.gate.bias)
        return lambda x: narrow(functional.silu(gate(x)).mul_(widen(x)))
    activate = torch.relu_ if part.activation == "relu" else ACTIVATIONS[part.activation]
    return lambda x: narrow(activate(widen(x)))


def _norm(part: nn.Module) -> LinearFn:
    if not isinstance(part, nn.LayerNorm):
        return part  # the last norm of post-norm layers: none
    weight, bias, shape, eps = part.weight.detach(), part.bias.detach(), part.normalized_shape, part.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


class _Applied(nn.Module):
    """A product in the place of a linear layer."""

    def __init__(self, multiplied: LinearFn) -> None:
        super().__init__()
        self._multiplied = multiplied

    def forward(self, x: Float[Tensor, "*tokens inputs"]) -> Float[Tensor, "*tokens outputs"]:
        return self._multiplied(x)


def _with_linear(model: Transformer, linear: MakeLinear) -> Transformer:
    """A copy of the model that encodes with such linear layers; it has no decoder."""
    twin = copy_sharing_weights(model).eval()
    twin.decoder = None
    encoder = cast("nn.Module", twin.encoder)
    replace_modules(encoder, nn.Linear, lambda part: _Applied(linear(part.weight, part.bias)))
    return twin
