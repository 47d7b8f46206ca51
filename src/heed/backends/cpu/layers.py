"""Weights of a model's layers packed into the C structures of `csrc/heed.h`.

The attention scale 1 / √d_k is folded into the query weights.
"""

import ctypes
import math
from collections.abc import Sequence
from typing import ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from heed.backends.cpu.packed_linear import MatrixStruct, PackedLinear
from heed.backends.cpu.pointers import pointer
from heed.backends.fused_weights import fuse_linear
from heed.backends.kv_cache import PositionTable, PositionTables
from heed.backends.memory import HugePages
from heed.config import ModelConfig
from heed.model.attention import MultiHeadAttention
from heed.model.layers import DecoderLayer, EncoderLayer

_ACTIVATIONS = ("relu", "gelu", "swish", "swiglu")
_NORM_ORDERS = ("post", "pre", "sandwich")
_SUBLAYERS = 3  # of a decoder layer; an encoder layer uses two


class NormStruct(ctypes.Structure):
    """`HeedNorm` in C: a layer norm, or the identity where weight is NULL."""

    _fields_: ClassVar = [("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("eps", ctypes.c_float)]


class LayerStruct(ctypes.Structure):
    """`HeedLayer` in C: the weights of one encoder or decoder layer."""

    _fields_: ClassVar = [
        *((name, MatrixStruct) for name in ("qkv", "o_self", "q_cross", "kv_cross", "o_cross")),
        *((name, MatrixStruct) for name in ("ffn_in", "ffn_gate", "ffn_out")),
        *((name, NormStruct * _SUBLAYERS) for name in ("norm", "outer_norm")),
    ]


class ModelStruct(ctypes.Structure):
    """`HeedModel` in C: the embedding, all layers, and a decoder's output projection."""

    _fields_: ClassVar = [
        ("layers", ctypes.POINTER(LayerStruct)),
        *((name, ctypes.c_int64) for name in ("layer_count", "d_model", "d_ff", "heads", "activation", "norm_order")),
        ("embedding", ctypes.c_void_p),
        ("vocabulary", ctypes.c_int64),
        ("embedding_scale", ctypes.c_float),
        ("final_norm", NormStruct),
        ("output", MatrixStruct),
    ]


class PositionsStruct(ctypes.Structure):
    """`HeedPositions` in C: the encodings of the first positions; it keeps their tensors alive."""

    _fields_: ClassVar = [
        *((name, ctypes.c_void_p) for name in ("embedding", "cos", "sin")),
        ("count", ctypes.c_int64),
    ]
    kept: PositionTables

    @classmethod
    def of(cls, positions: PositionTable, count: int) -> "PositionsStruct":
        """Of at least `count` positions."""
        tables = positions.tables(count)
        if tables.rotation is not None:
            angles = (tables.rotation.cos, tables.rotation.sin)
            struct = cls(None, *(pointer(angle, torch.float32, *angle.shape) for angle in angles), len(angles[0]))
        else:
            table = cast("Tensor", tables.embedding)
            struct = cls(pointer(table, torch.float32, *table.shape), None, None, len(table))
        struct.kept = tables
        return struct


class LayerStack:
    """A snapshot of the weights of an encoder or decoder: embedding, layers and, of a decoder, output projection."""

    @torch.no_grad()
    def __init__(
        self,
        config: ModelConfig,
        layers: Sequence[EncoderLayer | DecoderLayer],
        final_norm: nn.Module,
        embedding: nn.Embedding,
        output: tuple[Tensor, Tensor | None] | None = None,
        *,
        int8: bool,
    ) -> None:
        self._int8, self._d_model = int8, config.d_model
        self._kept: list[Tensor] = []  # keeps alive what the structures point to
        self._matrices: list[PackedLinear] = []
        self.cross_kv: list[PackedLinear] = []  # of each decoder layer: key and value projection of the source
        self._pages = HugePages()
        structs = (LayerStruct * len(layers))(*(self._layer(layer) for layer in layers))
        self.model = ModelStruct(
            structs, len(layers), config.d_model, config.d_ff, config.heads,
            _ACTIVATIONS.index(config.activation), _NORM_ORDERS.index(config.norm),
            self._pointer(embedding.weight, embedding.num_embeddings, self._d_model), embedding.num_embeddings,
            math.sqrt(config.d_model), self._norm(final_norm),
        )  # fmt: skip
        if output is not None:
            self.model.output = self._matrix(*output).matrix
        self.bytes = sum(matrix.bytes for matrix in self._matrices)

    def _layer(self, layer: EncoderLayer | DecoderLayer) -> LayerStruct:
        attention, feed_forward, cross = layer.attention, layer.feed_forward, None
        residuals = [layer.around_attention, layer.around_feed_forward]
        if isinstance(layer, DecoderLayer) and layer.cross_attention and layer.around_cross_attention:
            cross = layer.cross_attention
            residuals.insert(1, layer.around_cross_attention)
        unused = [NormStruct()] * (_SUBLAYERS - len(residuals))
        return LayerStruct(
            self._fused_queries(attention, attention.key, attention.value), self._linear(attention.output),
            *((MatrixStruct(),) * 3 if cross is None else self._cross_attention(cross)),
            self._linear(feed_forward.widen),
            MatrixStruct() if feed_forward.gate is None else self._linear(feed_forward.gate),
            self._linear(feed_forward.narrow),
            (NormStruct * _SUBLAYERS)(*(self._norm(residual.norm) for residual in residuals), *unused),
            (NormStruct * _SUBLAYERS)(*(self._norm(residual.outer_norm) for residual in residuals), *unused),
        )  # fmt: skip

    def _cross_attention(self, cross: MultiHeadAttention) -> tuple[MatrixStruct, MatrixStruct, MatrixStruct]:
        queries = self._fused_queries(cross)
        self.cross_kv.append(self._matrix(*fuse_linear([cross.key, cross.value])))
        return queries, self.cross_kv[-1].matrix, self._linear(cross.output)

    def _fused_queries(self, attention: MultiHeadAttention, *others: nn.Linear) -> MatrixStruct:
        """The scaled query projection, fused with other projections of the same input."""
        return self._matrix(*fuse_linear([attention.query, *others], first_scale=attention.split[1] ** -0.5)).matrix

    def _linear(self, layer: nn.Linear) -> MatrixStruct:
        return self._matrix(layer.weight, layer.bias).matrix

    def _matrix(self, weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, "outputs"] | None) -> PackedLinear:
        self._matrices.append(PackedLinear(weight, bias, int8=self._int8, pages=self._pages))
        return self._matrices[-1]

    def _norm(self, norm: nn.Module | None) -> NormStruct:
        if not isinstance(norm, nn.LayerNorm):
            return NormStruct()
        return NormStruct(self._pointer(norm.weight, self._d_model), self._pointer(norm.bias, self._d_model), norm.eps)

    def _pointer(self, tensor: Tensor, *shape: int) -> int:
        self._kept.append(tensor.detach().contiguous())
        return pointer(self._kept[-1], torch.float32, *shape)
