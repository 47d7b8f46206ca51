"""A step of decoding without ceremony: the numbers of `Transformer.step`; small models on a CPU take half the time.

One new token a row is so little arithmetic that what surrounds it takes longer: calls of modules, layouts, masks that
hide nothing. In a search all rows are as long as each other and none is padded, so self-attention needs no mask, and a
position is one number. The weights are the model's own, gathered once; nothing is copied. The twin is
`Transformer.step`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from heed.model.attention import KeysValues, MultiHeadAttention
from heed.model.feed_forward import ACTIVATIONS, FeedForward
from heed.model.layers import Decoder, DecoderLayer, Residual
from heed.model.positions import Rotation, sinusoids
from heed.model.transformer import Transformer

_ROOM = 32  # tokens that a first buffer has room for

Sublayer = Callable[[Tensor], Tensor]


class _Room:
    """The keys and values of all layers, shared by successive states; `filled` tokens of it are spoken for."""

    def __init__(self, numbers: Float[Tensor, "L 2 R H room K"], filled: int) -> None:
        self.numbers, self.filled = numbers, filled


@dataclass(frozen=True)
class Hypotheses:
    """R = B·W hypotheses of `length` tokens each, W for each of B sentences. A value: a step gives another one."""

    width: int
    length: int
    room: _Room
    source: Bool[Tensor, "B 1 1 S"] | None  # False where the source is padding; none: it has none
    memory: tuple[KeysValues, ...]  # of the source, (B, H, S, K), one a layer

    @torch.no_grad()
    def select(self, rows: Int[Tensor, "B W"], sentences: Int[Tensor, "B"] | None = None) -> "Hypotheses":
        """The hypotheses a search goes on with; as `Cache.select`."""
        source, memory = self.source, self.memory
        if sentences is not None:
            source = None if source is None else source[sentences]
            memory = tuple((keys[sentences], values[sentences]) for keys, values in memory)
        numbers = self.room.numbers
        kept = numbers.new_empty(*numbers.shape[:2], rows.numel(), *numbers.shape[3:])
        used = numbers[:, :, :, :, : self.length]
        torch.index_select(used, 2, rows.flatten(), out=kept[:, :, :, :, : self.length])
        return Hypotheses(rows.shape[1], self.length, _Room(kept, self.length), source, memory)

    def with_room(self) -> _Room:
        """A buffer with room for one more token, that no other state will write to."""
        capacity, rows = self.room.numbers.shape[4], self.room.numbers.shape[2]
        if self.room.filled == self.length < capacity:
            return self.room
        layers, two, _, heads, _, width = self.room.numbers.shape
        larger = capacity if self.length < capacity else 2 * capacity
        numbers = self.room.numbers.new_empty(layers, two, rows, heads, larger, width)
        numbers[:, :, :, :, : self.length] = self.room.numbers[:, :, :, :, : self.length]
        return _Room(numbers, self.length)


class LeanDecoder:
    """Steps as a model's decoder does. output: what makes logits of vectors, if not the model's own matrix."""

    def __init__(self, model: Transformer, output: Sublayer | None = None) -> None:
        self._model = model
        self._decoder = cast("Decoder", model.decoder)
        self._layers = cast("Sequence[DecoderLayer]", list(self._decoder.layers))
        self._plans = [_plan(layer) for layer in self._layers]
        self._output = output or model.vocabulary.logits

    @torch.no_grad()
    def start(self, src: Int[Tensor, "B S"]) -> Hypotheses:
        """The source encoded, as `Transformer.start` does it."""
        config = self._model.config
        real = src != config.pad_id
        memory = tuple(
            (keys.transpose(1, 2).contiguous(), values.transpose(1, 2).contiguous())
            for keys, values in self._decoder.keys_values(self._model.encode(src))
        )
        shape = (len(self._layers), 2, len(src), config.heads, _ROOM, config.head_width)
        room = _Room(memory[0][0].new_empty(shape), 0)
        return Hypotheses(1, 0, room, None if real.all() else real[:, None, None], memory)

    @torch.no_grad()
    def step(self, ids: Int[Tensor, "R"], state: Hypotheses) -> tuple[Float[Tensor, "R V"], Hypotheses]:
        """Logits after the next token of each row, and the state that knows it."""
        room = state.with_room()
        room.filled = state.length + 1
        position = torch.tensor([state.length])
        x = self._placed(self._model.vocabulary.target(ids), position)
        rotation = self._rotation(position, x.dtype)
        for layer, plan in enumerate(self._plans):
            past, memory = room.numbers[layer, :, :, :, : room.filled], state.memory[layer]
            x = plan(x, past, memory, state, rotation)
        logits = self._output(self._decoder.norm(x))
        return logits, replace(state, length=room.filled, room=room)

    def _placed(self, x: Float[Tensor, "R D"], position: Int[Tensor, "1"]) -> Float[Tensor, "R D"]:
        config = self._model.config
        if config.positions == "rotary":
            return x
        table = self._decoder.positions.table
        return x + (sinusoids(position, config.d_model).to(x.dtype) if table is None else table(position))

    def _rotation(self, position: Int[Tensor, "1"], dtype: torch.dtype) -> Rotation | None:
        config = self._model.config
        return Rotation.at(position, config.head_width, dtype) if config.positions == "rotary" else None


def can_be_lean(model: Transformer) -> bool:
    """Whether a model's steps can be taken this way: a CPU's, and nobody has changed them or has hooks in them."""
    if type(model) is not Transformer or model.training or model.encoder is None or model.decoder is None:
        return False
    if any(type(layer) is not DecoderLayer for layer in model.decoder.layers):
        return False
    if model.vocabulary.embedding.weight.device.type != "cpu":
        return False
    return not any(part._forward_hooks or part._forward_pre_hooks for part in model.decoder.modules())


Layer = Callable[[Tensor, Tensor, KeysValues, Hypotheses, Rotation | None], Tensor]


def _plan(layer: DecoderLayer) -> Layer:
    """A layer as one function, its weights at hand."""
    look_back, look_across = layer.attention, cast("MultiHeadAttention", layer.cross_attention)
    around = (layer.around_attention, cast("Residual", layer.around_cross_attention), layer.around_feed_forward)
    first, second, third = (_around(one) for one in around)
    own = [_linear(part) for part in (look_back.query, look_back.key, look_back.value, look_back.output)]
    query, key, value, output = own
    ask, gather = _linear(look_across.query), _linear(look_across.output)
    heads, width = look_back.split
    feed_forward = _feed_forward(layer.feed_forward)

    def step(x: Tensor, past: Tensor, memory: KeysValues, state: Hypotheses, rotation: Rotation | None) -> Tensor:
        def back(y: Tensor) -> Tensor:
            q, k, v = (part(y).view(-1, heads, width) for part in (query, key, value))
            if rotation is not None:
                q, k = rotation(q), rotation(k)
            past[0, :, :, -1], past[1, :, :, -1] = k, v
            found = functional.scaled_dot_product_attention(q[:, :, None], past[0], past[1])
            return output(found.view(-1, heads * width))

        def across(y: Tensor) -> Tensor:
            q = ask(y).view(-1, state.width, heads, width).transpose(1, 2)  # (B, H, W, K)
            found = functional.scaled_dot_product_attention(q, *memory, attn_mask=state.source)
            return gather(found.transpose(1, 2).reshape(-1, heads * width))

        return third(second(first(x, back), across), feed_forward)

    return step


def _around(residual: Residual) -> Callable[[Tensor, Sublayer], Tensor]:
    norm = _norm(residual.norm)
    if residual.order == "post":
        return lambda x, sublayer: norm(x + sublayer(x))
    if residual.outer_norm is None:
        return lambda x, sublayer: x + sublayer(norm(x))
    outer = _norm(residual.outer_norm)
    return lambda x, sublayer: x + outer(sublayer(norm(x)))


def _feed_forward(part: FeedForward) -> Sublayer:
    widen, narrow = _linear(part.widen), _linear(part.narrow)
    if part.gate is not None:
        gate = _linear(part.gate)
        return lambda x: narrow(functional.silu(gate(x)) * widen(x))
    activate = ACTIVATIONS[part.activation]
    return lambda x: narrow(activate(widen(x)))


def _linear(part: nn.Module) -> Sublayer:
    if not isinstance(part, nn.Linear):
        return part.forward  # in arithmetic of its own
    weight, bias = part.weight, part.bias
    return lambda x: functional.linear(x, weight, bias)


def _norm(part: nn.LayerNorm) -> Sublayer:
    weight, bias, shape, eps = part.weight, part.bias, part.normalized_shape, part.eps
    return lambda x: functional.layer_norm(x, shape, weight, bias, eps)
