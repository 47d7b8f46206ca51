"""Weights of a model's layers packed into the C structures of `csrc/heed.h`.

Enters: a model's settings and its weights by their names in the model folder, matrices in float32 or in int8 with their
scales. Leaves: a `LayerStack`. The attention scale 1 / √d_k is folded into the query weights. Knows nothing of torch.
"""

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from heed.artifacts.quantization import QuantizedMatrix, dequantize, scaled, stored_matrix
from heed.backends.cpu.packed_linear import MatrixStruct, PackedLinear
from heed.backends.cpu.pointers import array_pointer
from heed.backends.cpu.positions import EncodedPositions
from heed.backends.memory import HugePages
from heed.config import ModelConfig

Weights: TypeAlias = Mapping[str, NDArray[Any]]  # by name; an int8 matrix has its scales under `name.scales`
Side: TypeAlias = Literal["encoder", "decoder"]
_Matrix: TypeAlias = NDArray[Any] | QuantizedMatrix

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


def is_int8(weights: Weights, name: str) -> bool:
    return weights[name].dtype == np.int8


def float_weight(weights: Weights, name: str) -> NDArray[Any]:
    """A weight in floating point, dequantised if it is stored in int8."""
    return dequantize(stored_matrix(weights, name)) if is_int8(weights, name) else weights[name]


def embeddings(weights: Weights) -> dict[Side, NDArray[Any]]:
    """The token embedding of each side; the same array where source and target share one."""
    target = float_weight(weights, "vocabulary.embedding.weight")
    source = "vocabulary.source_embedding.weight"
    return {"encoder": float_weight(weights, source) if source in weights else target, "decoder": target}


class LayerStack:
    """A snapshot of the weights of an encoder or decoder: embedding, layers and, of a decoder, output projection."""

    def __init__(
        self, config: ModelConfig, weights: Weights, side: Side, embedding: NDArray[np.float32], *, int8: bool
    ) -> None:
        self._config, self._weights, self._int8 = config, weights, int8
        self._kept: list[NDArray[Any]] = []  # keeps alive what the structures point to
        self._matrices: list[PackedLinear] = []
        self.cross_kv: list[PackedLinear] = []  # of each decoder layer: key and value projection of the source
        self._pages = HugePages()
        self.positions = EncodedPositions(config, weights.get(f"{side}.positions.table.weight"))
        count = config.encoder_layers if side == "encoder" else config.decoder_layers
        structs = (LayerStruct * count)(*(self._layer(f"{side}.layers.{number}") for number in range(count)))
        self.model = ModelStruct(
            structs, count, config.d_model, config.d_ff, config.heads,
            _ACTIVATIONS.index(config.activation), _NORM_ORDERS.index(config.norm),
            self._pointer(embedding, *embedding.shape), len(embedding), math.sqrt(config.d_model),
            self._norm(f"{side}.norm"),
        )  # fmt: skip
        if side == "decoder":
            self.model.output = self._output_projection()
        self.bytes = sum(matrix.bytes for matrix in self._matrices)
        self._weights = {}  # all that is needed is packed

    def _layer(self, layer: str) -> LayerStruct:
        sublayers = ["around_attention", "around_feed_forward"]
        cross = [MatrixStruct(), MatrixStruct(), MatrixStruct()]
        if f"{layer}.cross_attention.query.weight" in self._weights:
            sublayers.insert(1, "around_cross_attention")
            cross = self._cross_attention(f"{layer}.cross_attention")
        attention, feed_forward = f"{layer}.attention", f"{layer}.feed_forward"
        unused = [NormStruct()] * (_SUBLAYERS - len(sublayers))
        return LayerStruct(
            self._linear(f"{attention}.query", f"{attention}.key", f"{attention}.value", scale=True),
            self._linear(f"{attention}.output"), *cross, self._linear(f"{feed_forward}.widen"),
            self._linear(f"{feed_forward}.gate") if self._config.activation == "swiglu" else MatrixStruct(),
            self._linear(f"{feed_forward}.narrow"),
            (NormStruct * _SUBLAYERS)(*(self._norm(f"{layer}.{around}.norm") for around in sublayers), *unused),
            (NormStruct * _SUBLAYERS)(*(self._norm(f"{layer}.{around}.outer_norm") for around in sublayers), *unused),
        )  # fmt: skip

    def _cross_attention(self, cross: str) -> list[MatrixStruct]:
        queries = self._linear(f"{cross}.query", scale=True)
        keys_values = self._linear(f"{cross}.key", f"{cross}.value")
        self.cross_kv.append(self._matrices[-1])
        return [queries, keys_values, self._linear(f"{cross}.output")]

    def _output_projection(self) -> MatrixStruct:
        if self._config.tie_embeddings:
            return self._matrix([self._stored("vocabulary.embedding.weight")], self._weights.get("vocabulary.bias"))
        return self._linear("vocabulary.output")

    def _linear(self, *layers: str, scale: bool = False) -> MatrixStruct:
        """Linear layers of the same input as one. scale: the first is a query projection, to be scaled by 1 / √d_k."""
        matrices = [self._stored(f"{layer}.weight") for layer in layers]
        biases = [self._floats(f"{layer}.bias") for layer in layers]
        if scale:
            factor = self._config.head_width**-0.5
            first = matrices[0]
            matrices[0] = scaled(first, factor) if isinstance(first, QuantizedMatrix) else first * np.float32(factor)
            biases[0] = biases[0] * np.float32(factor)
        return self._matrix(matrices, np.concatenate(biases))

    def _matrix(self, matrices: Sequence[_Matrix], bias: NDArray[np.float32] | None) -> MatrixStruct:
        """Concatenated matrices, packed; each row is quantised on its own."""
        whole, *others = matrices
        if others and isinstance(whole, QuantizedMatrix):
            whole = QuantizedMatrix(*(np.concatenate(parts) for parts in zip(*matrices, strict=True)))
        elif others:
            whole = np.concatenate(cast("list[NDArray[Any]]", matrices))
        self._matrices.append(PackedLinear(whole, bias, int8=self._int8, pages=self._pages))
        return self._matrices[-1].matrix

    def _norm(self, name: str) -> NormStruct:
        if f"{name}.weight" not in self._weights:
            return NormStruct()
        arrays = (self._floats(f"{name}.{part}") for part in ("weight", "bias"))
        return NormStruct(*(self._pointer(array, self._config.d_model) for array in arrays), self._config.norm_eps)

    def _stored(self, name: str) -> _Matrix:
        """A matrix; in int8 if it is stored so and is to be used so."""
        return stored_matrix(self._weights, name) if self._int8 and is_int8(self._weights, name) else self._floats(name)

    def _floats(self, name: str) -> NDArray[Any]:
        return float_weight(self._weights, name)

    def _pointer(self, array: NDArray[Any], *shape: int) -> int:
        self._kept.append(np.require(array, requirements=("C", "A")))
        return array_pointer(self._kept[-1], np.float32, *shape)
