"""A model's layers as compiled code takes them: the structures of `csrc/layers.h`, filled in.

The scale of the scores, 1 / √d_k, is a part of the queries' weights.
"""

import ctypes
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from heed.backends.cpu.packed_linear import Matrix, Panels
from heed.backends.cpu.pointers import pointer
from heed.backends.fused_weights import joined
from heed.backends.memory import LargePages
from heed.config import ModelConfig
from heed.model.attention import MultiHeadAttention
from heed.model.embeddings import Embeddings
from heed.model.layers import DecoderLayer, EncoderLayer

_ACTIVATIONS = ("relu", "gelu", "swish", "swiglu")
_ORDERS = ("post", "pre", "sandwich")
_MOST = 3  # sub-layers


class Norm(ctypes.Structure):
    """What the C calls a `Norm`."""

    _fields_: ClassVar = [("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("eps", ctypes.c_float)]


class Layer(ctypes.Structure):
    """And a `Layer`."""

    _fields_: ClassVar = [
        *((name, Matrix) for name in ("own", "output", "ask", "gather", "widen", "gate", "narrow")),
        *((name, Norm * _MOST) for name in ("norm", "outer")),
    ]


class Model(ctypes.Structure):
    """And a `Model`."""

    _fields_: ClassVar = [
        ("layers", ctypes.POINTER(Layer)),
        *((name, ctypes.c_int64) for name in ("count", "width", "inner", "heads", "activation", "order")),
        ("embedding", ctypes.c_void_p),
        ("scale", ctypes.c_float),
        ("last", Norm),
        ("logits", Matrix),
    ]


class Stack:
    """All layers of an encoder or a decoder, with the weights that they have now.

    words: the vocabulary, where words go in and logits come out.
    """

    @torch.no_grad()
    def __init__(
        self,
        config: ModelConfig,
        layers: Sequence[EncoderLayer | DecoderLayer],
        last: nn.Module,
        words: Embeddings | None = None,
        *,
        integers: bool,
    ) -> None:
        self._integers, self._width = integers, config.d_model
        self._kept: list[Tensor] = []  # what the structures point to
        self._panels: list[Panels] = []
        self._pages = LargePages()
        ready = (Layer * len(layers))(*(self._layer(layer) for layer in layers))
        self.model = Model(
            ready, len(layers), config.d_model, config.d_ff, config.heads,
            _ACTIVATIONS.index(config.activation), _ORDERS.index(config.norm), None, 0.0, self._norm(last),
        )  # fmt: skip
        if words is not None:
            table = words.embedding.weight
            self.model.embedding, self.model.scale = self._at(table, config.vocab_size, self._width), words.scale
            self.model.logits = self._matrix(*words.output_projection())
        self.bytes = sum(one.bytes for one in self._panels)

    def _layer(self, layer: EncoderLayer | DecoderLayer) -> Layer:
        own, inner, across = layer.attention, layer.feed_forward, None
        around = [layer.around_attention, layer.around_feed_forward]
        if isinstance(layer, DecoderLayer) and layer.cross_attention and layer.around_cross_attention:
            across = layer.cross_attention
            around.insert(1, layer.around_cross_attention)
        nothing = [Norm()] * (_MOST - len(around))
        return Layer(
            self._queries(own, own.key, own.value), self._linear(own.output),
            Matrix() if across is None else self._queries(across),
            Matrix() if across is None else self._linear(across.output),
            self._linear(inner.widen), Matrix() if inner.gate is None else self._linear(inner.gate),
            self._linear(inner.narrow),
            (Norm * _MOST)(*(self._norm(one.norm) for one in around), *nothing),
            (Norm * _MOST)(*(self._norm(one.outer_norm) for one in around), *nothing),
        )  # fmt: skip

    def _queries(self, part: MultiHeadAttention, *others: nn.Linear) -> Matrix:
        """The matrix of the queries, and others after it."""
        return self._matrix(*joined([part.query, *others], first_times=part.split[1] ** -0.5))

    def _linear(self, part: nn.Linear) -> Matrix:
        return self._matrix(part.weight, part.bias)

    def _matrix(self, weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, "outputs"] | None) -> Matrix:
        self._panels.append(Panels(weight, bias, integers=self._integers, pages=self._pages))
        return self._panels[-1].matrix

    def _norm(self, part: nn.Module | None) -> Norm:
        if not isinstance(part, nn.LayerNorm):
            return Norm()
        return Norm(self._at(part.weight, self._width), self._at(part.bias, self._width), part.eps)

    def _at(self, numbers: Tensor, *shape: int) -> int:
        self._kept.append(numbers.detach().contiguous())
        return pointer(self._kept[-1], torch.float32, *shape)
