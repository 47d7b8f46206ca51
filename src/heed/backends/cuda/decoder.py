"""Encoder and decoder step over static buffers, for capture as a CUDA graph.

Enters: a model. Leaves: `encode`, and `step`, which advances every search in the slots by one token. The weights are
copied once in the dtype of the arithmetic, with QKV fused into one matrix and the source's key and value projections of
all layers into another. The operations between the matmuls are `StepOps`. The references are `Transformer.encode`, and
`Transformer.step` under `decoding.search`.
"""

import copy
from collections.abc import Callable, Sequence
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from heed.backends.cuda.slots import Slots, SlotShape
from heed.backends.cuda.step_ops import EmbeddingParams, SpecialIds, StepOps, residual_norms
from heed.backends.fused_weights import fuse_linear, qkv_projections
from heed.model.attention import MultiHeadAttention
from heed.model.layers import ACTIVATIONS, Decoder, DecoderLayer, Encoder, EncoderLayer, FeedForward, Residual
from heed.model.layout import AttentionPattern, Packed
from heed.model.positions import angles, sinusoids
from heed.model.transformer import Transformer


class StaticEncoder:
    """The encoder over packed sentences, with fused QKV and fused residual norms."""

    def __init__(self, model: Transformer, ops: StepOps) -> None:
        self._encoder, self._vocabulary, self._ops = cast("Encoder", model.encoder), model.vocabulary, ops
        layers = cast("Sequence[EncoderLayer]", list(self._encoder.layers))
        self._first_norm, self._residual_norms = residual_norms(
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
            (
                fuse_linear(qkv_projections(layer.attention)),
                layer.attention,
                _feed_forward_without_bias(layer.feed_forward),
            )
            for layer in layers
        ]
        self._sinusoids = model.vocabulary.embedding.weight.new_empty(0, model.config.d_model)

    def __call__(self, src: Int[Tensor, "N"], layout: Packed) -> Float[Tensor, "N D"]:
        pattern = AttentionPattern.between(layout, layout)
        stream = self._with_positions(self._vocabulary.embed_source(src), pattern)
        rotation = self._encoder.positions.rotation(pattern, stream.dtype)
        x, residual_norm = stream, iter(self._residual_norms)
        if self._first_norm is not None:
            x = functional.layer_norm(stream, stream.shape[1:], *self._first_norm)
        for (weight, bias), attention, feed_forward in self._layers:
            qkv = functional.linear(x, weight, bias).unflatten(-1, (3, *attention.split))
            queries, keys, values = qkv.unbind(1)
            if rotation is not None:
                queries, keys = rotation(queries), rotation(keys)
            heads = self._ops.encoder_attention(queries, keys, values, pattern, 0.0).flatten(1)
            attended = heads @ attention.output.weight.t()
            stream, x = self._ops.add_residual_norm(stream, attended, next(residual_norm))
            stream, x = self._ops.add_residual_norm(stream, feed_forward(x), next(residual_norm))
        return x

    def _with_positions(self, embedded: Float[Tensor, "N D"], pattern: AttentionPattern) -> Float[Tensor, "N D"]:
        """Add position embeddings; sinusoids are cached, since computing them takes a dozen kernels."""
        code, layout = self._encoder.positions, cast("Packed", pattern.queries)
        if code.kind != "sinusoidal":
            return code(embedded, pattern)
        if layout.max_seqlen > len(self._sinusoids):
            positions = torch.arange(2 * layout.max_seqlen, device=embedded.device)
            self._sinusoids = sinusoids(positions, embedded.shape[1]).to(embedded.dtype)
        return embedded + self._sinusoids[layout.positions]


Sublayer = Callable[[Tensor, Slots, EmbeddingParams], Tensor]  # its output, without the bias of its last linear layer


class StaticDecoder:
    """A copy of a model in one dtype, whose decoder steps in static buffers."""

    def __init__(self, model: Transformer, dtype: torch.dtype, ops: StepOps) -> None:
        self._model = copy.deepcopy(model).to(dtype).eval().requires_grad_(requires_grad=False)
        self._ops, self.dtype, self.config = ops, dtype, model.config
        self._decoder = cast("Decoder", self._model.decoder)
        layers = cast("Sequence[DecoderLayer]", list(self._decoder.layers))
        self._cross_kv = [torch.stack(params) for params in zip(*(_cross_kv(layer) for layer in layers), strict=True)]
        self._sublayers = [
            sublayer for number, layer in enumerate(layers) for sublayer in _sublayers(layer, number, ops)
        ]
        self._first_norm, self._residual_norms = residual_norms(_residuals(layers), self._decoder.norm)
        self._encoder = StaticEncoder(self._model, ops)
        self._output, self._output_bias = self._model.vocabulary.output_projection()
        self._special = SpecialIds(self.config.pad_id, self.config.bos_id, self.config.eos_id)
        self.device = self._output.device

    def slots(self, shape: SlotShape) -> tuple[Slots, EmbeddingParams]:
        """Buffers of this shape, and the parameters of the token embedding."""
        config, vocabulary = self.config, self._model.vocabulary
        heads = (config.heads, config.head_width)
        empty = Slots.empty(shape, config.decoder_layers, heads, self.dtype, self.device)
        embeddings, rotation, position = None, None, torch.arange(shape.target_length, device=self.device)
        if config.positions == "rotary":
            angle = angles(position, config.head_width)
            rotation = torch.stack((angle.cos(), angle.sin())).float()
        elif self._decoder.positions.table is not None:
            embeddings = self._decoder.positions.table.weight[: shape.target_length].float()
        else:
            embeddings = sinusoids(position, config.d_model).float()
        return empty, EmbeddingParams(
            vocabulary.embedding.weight, vocabulary.scale, embeddings, rotation, self._first_norm
        )

    @torch.no_grad()
    def encode(self, src: Int[Tensor, "N"], layout: Packed) -> Float[Tensor, "N D"]:
        return self._encoder(src, layout)

    @torch.no_grad()
    def project_memory(self, memory: Float[Tensor, "B S D"]) -> Float[Tensor, "L 2 B S H K"]:
        """Keys and values of encoded sources, for all layers in one matmul."""
        weights, biases = self._cross_kv  # (L, 2, D, D), (L, 2, D)
        keys_values = torch.baddbmm(
            biases.flatten(0, 1)[:, None],
            memory.flatten(0, 1).expand(2 * len(weights), -1, -1),
            weights.flatten(0, 1).mT,
        )
        return keys_values.view(*weights.shape[:2], *memory.shape[:2], self.config.heads, self.config.head_width)

    @torch.no_grad()
    def step(self, slots: Slots, embedding: EmbeddingParams) -> None:
        """One token more for every hypothesis of every unfinished sentence."""
        stream, x = self._ops.embed(embedding, slots)
        for sublayer, residual_norm in zip(self._sublayers, self._residual_norms, strict=True):
            stream, x = self._ops.add_residual_norm(stream, sublayer(x, slots, embedding), residual_norm)
        self._ops.beam_step(self._logits(x), self._output_bias, slots, self._special)

    def _logits(self, x: Float[Tensor, "R D"]) -> Float[Tensor, "R V"]:
        """Logits in float32: in bfloat16 many tokens would tie."""
        if x.dtype == torch.bfloat16 and x.is_cuda:
            return torch.mm(x, self._output.t(), out_dtype=torch.float32)
        return (x @ self._output.t()).float()


def _sublayers(layer: DecoderLayer, number: int, ops: StepOps) -> list[Sublayer]:
    attention, cross = layer.attention, cast("MultiHeadAttention", layer.cross_attention)
    qkv, qkv_bias = fuse_linear(qkv_projections(attention))

    def self_attention(x: Tensor, slots: Slots, embedding: EmbeddingParams) -> Tensor:
        heads = ops.self_attention(x @ qkv.t(), qkv_bias, slots, number, embedding.rotation)
        return heads @ attention.output.weight.t()

    def cross_attention(x: Tensor, slots: Slots, _: EmbeddingParams) -> Tensor:
        queries = x @ cross.query.weight.t()
        return ops.cross_attention(queries, cross.query.bias, slots, number) @ cross.output.weight.t()

    feed_forward = _feed_forward_without_bias(layer.feed_forward)
    return [self_attention, cross_attention, lambda x, *_: feed_forward(x)]


def _cross_kv(layer: DecoderLayer) -> tuple[Tensor, Tensor]:
    """Weights and biases of the source's key and value projections."""
    cross = cast("MultiHeadAttention", layer.cross_attention)
    return (
        torch.stack((cross.key.weight, cross.value.weight)),
        torch.stack((cross.key.bias, cross.value.bias)),
    )


def _residuals(layers: Sequence[DecoderLayer]) -> list[tuple[Residual, nn.Linear]]:
    """The residual wrapper of each sub-layer, and its last linear layer."""
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


def _feed_forward_without_bias(part: FeedForward) -> Callable[[Float[Tensor, "R D"]], Float[Tensor, "R D"]]:
    """The feed-forward network without the bias of its second linear layer, which `ResidualNorm` adds."""
    ffn_in, ffn_out = part.widen, part.narrow.weight
    if part.gate is not None:
        weight, bias = (torch.cat((getattr(part.gate, name), getattr(ffn_in, name))) for name in ("weight", "bias"))

        def gated(x: Tensor) -> Tensor:
            gate, hidden = functional.linear(x, weight, bias).chunk(2, -1)
            return (functional.silu(gate) * hidden) @ ffn_out.t()

        return gated
    if part.activation == "relu":  # matmul, bias and ReLU in one kernel
        return lambda x: torch._addmm_activation(ffn_in.bias, x, ffn_in.weight.t()) @ ffn_out.t()
    activate = ACTIVATIONS[part.activation]
    return lambda x: activate(functional.linear(x, ffn_in.weight, ffn_in.bias)) @ ffn_out.t()
