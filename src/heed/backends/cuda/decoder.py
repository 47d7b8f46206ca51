"""A model's encoder and decoder as functions over static buffers: a step of a search that a GPU can replay.

Enters: a model. Leaves: `encode`, and `step`, which takes every search in the slots one token further. The weights are
gathered once, in the dtype of the arithmetic: query, key and value projections of self-attention as one matrix, the
keys and values that all layers make of the source as another. What lies between the matmuls is `StepOps`. The
references are `Transformer.encode`, and `Transformer.step` under `decoding.search`.
"""

import copy
from collections.abc import Callable, Sequence
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from heed.backends.cuda.slots import Shape, Slots
from heed.backends.cuda.step_ops import Special, StepOps, Words
from heed.backends.fused_weights import closings, feed_forward, joined, queries_keys_values
from heed.model.attention import MultiHeadAttention
from heed.model.layers import Decoder, DecoderLayer, Encoder, EncoderLayer, Residual
from heed.model.layout import AttentionPattern, Packed
from heed.model.positions import angles, sinusoids
from heed.model.transformer import Transformer


class StaticEncoder:
    """Encodes with the weights of a model, in their type."""

    def __init__(self, model: Transformer, ops: StepOps) -> None:
        self._encoder, self._vocabulary, self._ops = cast("Encoder", model.encoder), model.vocabulary, ops
        layers = cast("Sequence[EncoderLayer]", list(self._encoder.layers))
        self._first, self._closings = closings(
            [
                pair
                for layer in layers
                for pair in (
                    (layer.around_attention, layer.attention.output),
                    (layer.around_feed_forward, layer.feed_forward.narrow),
                )
            ],
            self._encoder.norm,
        )
        self._layers = [
            (joined(queries_keys_values(layer.attention)), layer.attention, feed_forward(layer.feed_forward))
            for layer in layers
        ]
        self._places = model.vocabulary.embedding.weight.new_empty(0, model.config.d_model)

    def __call__(self, src: Int[Tensor, "N"], layout: Packed) -> Float[Tensor, "N D"]:
        """Each token in the light of its sentence."""
        pattern = AttentionPattern.between(layout, layout)
        stream = self._placed(self._vocabulary.embed_source(src), pattern)
        rotation = self._encoder.positions.rotation(pattern, stream.dtype)
        ready, closing = stream, iter(self._closings)
        if self._first is not None:
            ready = functional.layer_norm(stream, stream.shape[1:], *self._first)
        for (weight, bias), attention, widen_and_narrow in self._layers:
            three = functional.linear(ready, weight, bias).unflatten(-1, (3, *attention.split))
            queries, keys, values = three.unbind(1)
            if rotation is not None:
                queries, keys = rotation(queries), rotation(keys)
            heads = self._ops.encoder_attention(queries, keys, values, pattern, 0.0).flatten(1)
            stream, ready = self._ops.add_residual_norm(stream, heads @ attention.output.weight.t(), next(closing))
            stream, ready = self._ops.add_residual_norm(stream, widen_and_narrow(ready), next(closing))
        return ready

    def _placed(self, embedded: Float[Tensor, "N D"], pattern: AttentionPattern) -> Float[Tensor, "N D"]:
        """With places added; the formula's are kept, for it takes a dozen kernels."""
        code, layout = self._encoder.positions, cast("Packed", pattern.queries)
        if code.kind != "sinusoidal":
            return code(embedded, pattern)
        if layout.max_seqlen > len(self._places):
            places = torch.arange(2 * layout.max_seqlen, device=embedded.device)
            self._places = sinusoids(places, embedded.shape[1]).to(embedded.dtype)
        return embedded + self._places[layout.positions]


Sublayer = Callable[[Tensor, Slots, Words], Tensor]  # what it finds for what is ready, without its last bias


class StaticDecoder:
    """The decoder of a model, and its encoder, in arithmetic of one type."""

    def __init__(self, model: Transformer, dtype: torch.dtype, ops: StepOps) -> None:
        self._model = copy.deepcopy(model).to(dtype).eval().requires_grad_(requires_grad=False)
        self._ops, self.dtype, self.config = ops, dtype, model.config
        self._decoder = cast("Decoder", self._model.decoder)
        layers = cast("Sequence[DecoderLayer]", list(self._decoder.layers))
        self._keys_values = [torch.stack(both) for both in zip(*(_of_source(layer) for layer in layers), strict=True)]
        self._sublayers = [one for number, layer in enumerate(layers) for one in _sublayers(layer, number, ops)]
        self._norm, self._closings = closings(_ends(layers), self._decoder.norm)
        self._encoder = StaticEncoder(self._model, ops)
        self._output, self._output_bias = self._model.vocabulary.output_projection()
        self._special = Special(self.config.pad_id, self.config.bos_id, self.config.eos_id)
        self.device = self._output.device

    def slots(self, shape: Shape) -> tuple[Slots, Words]:
        """Memory for searches of this shape, and how words are read into it."""
        config, vocabulary = self.config, self._model.vocabulary
        heads = (config.heads, config.head_width)
        empty = Slots.empty(shape, config.decoder_layers, heads, self.dtype, self.device)
        places, turns, position = None, None, torch.arange(shape.target, device=self.device)
        if config.positions == "rotary":
            angle = angles(position, config.head_width)
            turns = torch.stack((angle.cos(), angle.sin())).float()
        elif self._decoder.positions.table is not None:
            places = self._decoder.positions.table.weight[: shape.target].float()
        else:
            places = sinusoids(position, config.d_model).float()
        return empty, Words(vocabulary.embedding.weight, vocabulary.scale, places, turns, self._norm)

    @torch.no_grad()
    def encode(self, src: Int[Tensor, "N"], layout: Packed) -> Float[Tensor, "N D"]:
        """Sources as the encoder sees them."""
        return self._encoder(src, layout)

    @torch.no_grad()
    def remember(self, memory: Float[Tensor, "B S D"]) -> Float[Tensor, "L 2 B S H K"]:
        """Keys and values of an encoded source, for all layers in one product."""
        weights, biases = self._keys_values  # (L, 2, D, D), (L, 2, D)
        both = torch.baddbmm(
            biases.flatten(0, 1)[:, None],
            memory.flatten(0, 1).expand(2 * len(weights), -1, -1),
            weights.flatten(0, 1).mT,
        )
        return both.view(*weights.shape[:2], *memory.shape[:2], self.config.heads, self.config.head_width)

    @torch.no_grad()
    def step(self, slots: Slots, words: Words) -> None:
        """One token more for every hypothesis of every sentence that is not over."""
        stream, ready = self._ops.embed(words, slots)
        for sublayer, closing in zip(self._sublayers, self._closings, strict=True):
            stream, ready = self._ops.add_residual_norm(stream, sublayer(ready, slots, words), closing)
        self._ops.beam_step(self._logits(ready), self._output_bias, slots, self._special)

    def _logits(self, x: Float[Tensor, "R D"]) -> Float[Tensor, "R V"]:
        """In float32: rounded to bfloat16, many words would be equally likely."""
        if x.dtype == torch.bfloat16 and x.is_cuda:
            return torch.mm(x, self._output.t(), out_dtype=torch.float32)
        return (x @ self._output.t()).float()


def _sublayers(layer: DecoderLayer, number: int, ops: StepOps) -> list[Sublayer]:
    own, across = layer.attention, cast("MultiHeadAttention", layer.cross_attention)
    qkv, qkv_bias = joined(queries_keys_values(own))

    def self_attention(x: Tensor, slots: Slots, words: Words) -> Tensor:
        return ops.self_attention(x @ qkv.t(), qkv_bias, slots, number, words.turns) @ own.output.weight.t()

    def cross_attention(x: Tensor, slots: Slots, _: Words) -> Tensor:
        queries = x @ across.query.weight.t()
        return ops.cross_attention(queries, across.query.bias, slots, number) @ across.output.weight.t()

    widen_and_narrow = feed_forward(layer.feed_forward)
    return [self_attention, cross_attention, lambda x, *_: widen_and_narrow(x)]


def _of_source(layer: DecoderLayer) -> tuple[Tensor, Tensor]:
    """Weights and biases that make keys and values of the source."""
    across = cast("MultiHeadAttention", layer.cross_attention)
    return (
        torch.stack((across.key.weight, across.value.weight)),
        torch.stack((across.key.bias, across.value.bias)),
    )


def _ends(layers: Sequence[DecoderLayer]) -> list[tuple[Residual, nn.Linear]]:
    """What is around each sub-layer, and its last product."""
    return [
        pair
        for layer in layers
        for pair in (
            (layer.around_attention, layer.attention.output),
            (
                cast("Residual", layer.around_cross_attention),
                cast("MultiHeadAttention", layer.cross_attention).output,
            ),
            (layer.around_feed_forward, layer.feed_forward.narrow),
        )
    ]
