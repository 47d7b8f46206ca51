"""A step of decoding without ceremony, on a CPU: the numbers of `Transformer.step` in a fraction of the time.

One new token a row is so little arithmetic that what surrounds it takes longer: calls of modules, layouts, masks that
hide nothing, copies. In a search all rows are as long as each other and none is padded, so a position is one number.
What can be done once is done when the decoder is made: query, key and value become one matrix, the keys and values of
the source in all layers another, and each is laid out for the processor (`products.py`). Sources are encoded end to
end, without padding. What is remembered between steps is in `hypotheses.py`. The twin is `Transformer.step`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from heed.backends.cpu.decoder import CompiledModel
from heed.backends.fused_weights import joined, keys_values_of_memory, queries_keys_values
from heed.backends.kv_cache import Context, Hypotheses, Room, by_layer
from heed.backends.memory import keep_freed_memory
from heed.backends.torch.linear import Multiply, Product, product
from heed.fallbacks import note_fallback
from heed.model.attention import MultiHeadAttention
from heed.model.layers import ACTIVATIONS, Decoder, DecoderLayer, FeedForward, Residual
from heed.model.layout import Packed
from heed.model.positions import PositionCode, Rotation, sinusoids
from heed.model.transformer import Transformer, replace_parts, sharing_weights

_ROOM = 64  # columns that a first buffer has room for


class LeanDecoder:
    """Steps as a model's decoder does, with the weights that the model had when this was made; it keeps no model.

    multiply: what makes products of matrices. compiled: what encodes and steps in one call, where that can be had.
    """

    def __init__(self, model: Transformer, multiply: Multiply = product, compiled: CompiledModel | None = None) -> None:
        keep_freed_memory()  # the logits of a step alone are megabytes
        self._config = config = model.config
        self._compiled = compiled
        decoder = cast("Decoder", model.decoder)
        layers = cast("Sequence[DecoderLayer]", list(decoder.layers))
        self._words = model.vocabulary.embedding.weight.detach()
        self._scale = model.vocabulary.scale
        self._places = _Places(decoder.positions, self._words)
        self._memory = multiply(*joined(keys_values_of_memory(decoder)))
        self._memory_shape = (len(layers), 2, config.heads, config.head_width)
        if compiled is None:
            self._encoding = _with_products(model, multiply)
            self._layers = [_Layer(layer, multiply) for layer in layers]
            self._norm = _norm(decoder.norm)
            self._output = multiply(*model.vocabulary.output_matrix())

    @torch.no_grad()
    def start(self, src: Int[Tensor, "B S"]) -> Hypotheses:
        """The source encoded, as `Transformer.start` does it."""
        real = src != self._config.pad_id  # padding may lie anywhere; what is encoded has none
        lengths = real.sum(1)
        whole = bool(lengths.min() == src.shape[1])
        layout = Packed.of_lengths(lengths)
        if self._compiled is not None:
            flat = self._compiled.encode(src[real], layout)
        else:
            flat = self._encoding.encode(src).flatten(0, 1) if whole else self._encoding.encode(src[real], layout)
        found = layout.rows(self._memory(flat))  # (B, S, L·2·D)
        memory = found.unflatten(-1, self._memory_shape).permute(2, 3, 0, 4, 1, 5).contiguous()
        room = memory.new_empty(*memory.shape[:4], _ROOM, memory.shape[-1])
        return Hypotheses(1, 0, 0, Room(room, 0), None, None if whole else layout.real, memory)

    @torch.no_grad()
    def step(self, ids: Int[Tensor, "R"], state: Hypotheses) -> tuple[Float[Tensor, "R V"], Hypotheses]:
        """Logits after the next token of each row, and the state that knows it."""
        place, rotation = self._places.at(state.length)
        if self._compiled is not None:
            state = state.with_room().longer()
            return self._compiled.step(ids, state, place, rotation), state
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


def can_be_lean(model: Transformer) -> bool:
    """Whether a model's steps can be taken this way: it is on a CPU, and steps as it was made."""
    return model.vocabulary.embedding.weight.device.type == "cpu" and steps_as_made(model)


def steps_as_made(model: Transformer) -> bool:
    """Whether another can step in a model's place: it translates, and nobody has changed it or has hooks in it."""
    if type(model) is not Transformer or model.training or model.encoder is None or model.decoder is None:
        return False
    if any(type(layer) is not DecoderLayer for layer in model.decoder.layers):
        return False
    parts = parts_of(model)
    if any(part._forward_hooks or part._forward_pre_hooks for part in parts):
        return False
    if any(weight is not None and weight.is_inference() for part in parts for weight in part._parameters.values()):
        note_fallback(
            "the model was made in torch.inference_mode(), whose weights can change unnoticed: it decodes by its own "
            "steps, which are slower; make it outside of inference mode"
        )
        return False
    return True


def parts_of(model: nn.Module) -> list[nn.Module]:
    """`model.modules()` in a fifth of the time; a part that is shared comes as often as it is."""
    parts = [model]
    for part in parts:  # which grows meanwhile
        parts += [child for child in part._modules.values() if child is not None]
    return parts


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

    def __init__(self, layer: DecoderLayer, multiply: Multiply) -> None:
        back, across = layer.attention, cast("MultiHeadAttention", layer.cross_attention)
        around = (layer.around_attention, cast("Residual", layer.around_cross_attention), layer.around_feed_forward)
        self._first, self._second, self._third = (_around(one) for one in around)
        scale = back.split[1] ** -0.5
        self._own = multiply(*joined(queries_keys_values(back), first_times=scale))
        self._output = multiply(back.output.weight, back.output.bias)
        self._ask = multiply(*joined([across.query], first_times=scale))
        self._gather = multiply(across.output.weight, across.output.bias)
        self._feed_forward = _feed_forward(layer.feed_forward, multiply)

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


class _Places:
    """What tells tokens where they stand: a vector to add, or a rotation; worked out for many places at a time."""

    def __init__(self, code: PositionCode, like: Float[Tensor, "V D"]) -> None:
        self._code, self._like = code, like
        self._extend(256)

    def at(self, position: int) -> tuple[Float[Tensor, "D"] | None, Rotation | None]:
        """Of one place."""
        if self._code.kind == "rotary":
            if position >= len(self._rotation.cos):
                self._extend(2 * position)
            return None, Rotation(self._rotation.cos[position], self._rotation.sin[position])
        if position >= len(self._table) and self._code.table is None:
            self._extend(2 * position)
        return self._table[position], None

    def _extend(self, count: int) -> None:
        places, dtype = torch.arange(count, device=self._like.device), self._like.dtype
        if self._code.kind == "rotary":
            self._rotation = Rotation.at(places, self._code.head_width, dtype)
        elif self._code.table is None:
            self._table = sinusoids(places, self._like.shape[1]).to(dtype)
        else:
            self._table = self._code.table.weight.detach()


def _around(residual: Residual) -> Callable[[Tensor, Product], Tensor]:
    norm = _norm(residual.norm)
    if residual.order == "post":
        return lambda x, sublayer: norm(sublayer(x).add_(x))
    if residual.outer_norm is None:
        return lambda x, sublayer: sublayer(norm(x)).add_(x)
    outer = _norm(residual.outer_norm)
    return lambda x, sublayer: outer(sublayer(norm(x))).add_(x)


def _feed_forward(part: FeedForward, multiply: Multiply) -> Product:
    widen, narrow = (multiply(one.weight, one.bias) for one in (part.widen, part.narrow))
    if part.gate is not None:
        gate = multiply(part.gate.weight, part.gate.bias)
        return lambda x: narrow(functional.silu(gate(x)).mul_(widen(x)))
    activate = torch.relu_ if part.activation == "relu" else ACTIVATIONS[part.activation]
    return lambda x: narrow(activate(widen(x)))


def _norm(part: nn.Module) -> Product:
    if not isinstance(part, nn.LayerNorm):
        return part  # the last norm of post-norm layers: none
    weight, bias, shape, eps = part.weight.detach(), part.bias.detach(), part.normalized_shape, part.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


class _Applied(nn.Module):
    """A product in the place of a linear layer."""

    def __init__(self, multiplied: Product) -> None:
        super().__init__()
        self._multiplied = multiplied

    def forward(self, x: Float[Tensor, "*tokens inputs"]) -> Float[Tensor, "*tokens outputs"]:
        return self._multiplied(x)


def _with_products(model: Transformer, multiply: Multiply) -> Transformer:
    """A twin of the model that encodes with products of this kind; it has no decoder."""
    twin = sharing_weights(model).eval()
    twin.decoder = None
    encoder = cast("nn.Module", twin.encoder)
    replace_parts(encoder, nn.Linear, lambda part: _Applied(multiply(part.weight, part.bias)))
    return twin
