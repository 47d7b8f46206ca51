"""A step of decoding in compiled code, on a CPU: `native/step.c` from Python.

Enters: a model in float32, whose matrices may become integers of 8 bits. Leaves: what `LeanDecoder` calls instead of
one operator after another, which would take longer than the arithmetic. The structures are those of the C.
"""

import ctypes
from collections.abc import Sequence
from typing import ClassVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from heed.kernels.compiled_products import Matrix, Panels, missing_for_compiled_code, native, threads_for
from heed.kernels.hypotheses import Hypotheses
from heed.model.attention import MultiHeadAttention
from heed.model.layers import Decoder, DecoderLayer, Residual
from heed.model.positions import Rotation
from heed.model.transformer import Transformer

_ACTIVATIONS = ("relu", "gelu", "swish", "swiglu")
_ORDERS = ("post", "pre", "sandwich")
_address, _integer = ctypes.c_void_p, ctypes.c_int64


class _Norm(ctypes.Structure):
    _fields_: ClassVar = [("weight", _address), ("bias", _address), ("eps", ctypes.c_float)]


class _Layer(ctypes.Structure):
    _fields_: ClassVar = [
        *((name, Matrix) for name in ("own", "output", "ask", "gather", "widen", "gate", "narrow")),
        *((name, _Norm * 3) for name in ("norm", "outer")),
    ]


class _Model(ctypes.Structure):
    _fields_: ClassVar = [
        ("layers", ctypes.POINTER(_Layer)),
        *((name, _integer) for name in ("count", "width", "inner", "heads", "activation", "order")),
        ("embedding", _address),
        ("scale", ctypes.c_float),
        ("last", _Norm),
        ("logits", Matrix),
    ]


class _Seen(ctypes.Structure):
    _fields_: ClassVar = [
        ("ids", _address),
        *((name, _integer) for name in ("sentences", "wide", "length")),
        *((name, _address) for name in ("place", "cos", "sin", "room")),
        *((name, _integer) for name in ("columns", "filled")),
        *((name, _address) for name in ("written", "memory")),
        ("tokens", _integer),
        *((name, _address) for name in ("lengths", "found")),
    ]


class CompiledStep:
    """A decoder's step; the weights are those that the model had when this was made."""

    def __init__(self, model: Transformer, *, integers: bool) -> None:
        config, decoder = model.config, cast("Decoder", model.decoder)
        self._integers = integers
        self._kept: list[Tensor] = []  # what the structures point to
        self._panels: list[Panels] = []
        layers = [self._layer(layer) for layer in cast("Sequence[DecoderLayer]", decoder.layers)]
        self._model = _Model(
            (_Layer * len(layers))(*layers), len(layers), config.d_model, config.d_ff, config.heads,
            _ACTIVATIONS.index(config.activation), _ORDERS.index(config.norm),
            self._at(model.vocabulary.embedding.weight), model.vocabulary.scale,
            self._norm(decoder.norm), self._matrix(*model.vocabulary.output_matrix()),
        )  # fmt: skip
        self._words = config.vocab_size
        self._bytes = sum(one.bytes for one in self._panels)
        self._run = native().heed_step

    def __call__(
        self,
        ids: Int[Tensor, "R"],
        state: Hypotheses,
        place: Float[Tensor, "D"] | None,
        rotation: Rotation | None,
    ) -> Float[Tensor, "R V"]:
        """The logits after the newest token of each row, which `state` has room for already."""
        found = torch.empty(len(ids), self._words)
        ids, memory, room = ids.contiguous(), state.memory.contiguous(), state.room.numbers
        written = None if state.written is None else state.written.contiguous()
        turned = (None, None) if rotation is None else (rotation.cos.data_ptr(), rotation.sin.data_ptr())
        seen = _Seen(
            ids.data_ptr(), memory.shape[2], state.width, state.length,
            None if place is None else place.data_ptr(), *turned, room.data_ptr(),
            room.shape[4], state.columns - state.width, None if written is None else written.data_ptr(),
            memory.data_ptr(), memory.shape[4], state.lengths.data_ptr(), found.data_ptr(),
        )  # fmt: skip
        if self._run(ctypes.byref(self._model), ctypes.byref(seen), threads_for(self._bytes * len(ids))):
            raise MemoryError("there is no memory for a step of decoding")
        return found

    def _layer(self, layer: DecoderLayer) -> _Layer:
        back, across, inner = layer.attention, cast("MultiHeadAttention", layer.cross_attention), layer.feed_forward
        around = (layer.around_attention, cast("Residual", layer.around_cross_attention), layer.around_feed_forward)
        scale = back.split[1] ** -0.5  # of the scores, 1 / √d_k: a part of the queries' weights
        queries, asking = ((part.query.weight * scale, part.query.bias * scale) for part in (back, across))
        keys_values = ((part.weight, part.bias) for part in (back.key, back.value))
        own = (torch.cat(three) for three in zip(queries, *keys_values, strict=True))
        return _Layer(
            self._matrix(*own), self._linear(back.output), self._matrix(*asking), self._linear(across.output),
            self._linear(inner.widen), Matrix() if inner.gate is None else self._linear(inner.gate),
            self._linear(inner.narrow), (_Norm * 3)(*(self._norm(one.norm) for one in around)),
            (_Norm * 3)(*(self._norm(one.outer_norm) for one in around)),
        )  # fmt: skip

    def _linear(self, part: nn.Linear) -> Matrix:
        return self._matrix(part.weight, part.bias)

    def _matrix(self, weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, "outputs"] | None) -> Matrix:
        self._panels.append(Panels(weight, bias, integers=self._integers))
        return self._panels[-1].matrix

    def _norm(self, part: nn.Module | None) -> _Norm:
        if not isinstance(part, nn.LayerNorm):
            return _Norm()
        return _Norm(self._at(part.weight), self._at(part.bias), part.eps)

    def _at(self, numbers: Tensor) -> int:
        self._kept.append(numbers.detach().contiguous())
        return self._kept[-1].data_ptr()


def compiled_step(model: Transformer, *, integers: bool = False) -> CompiledStep | None:
    """A model's step in compiled code, where it can be had."""
    if model.vocabulary.embedding.weight.dtype != torch.float32 or missing_for_compiled_code():
        return None
    with torch.no_grad():
        return CompiledStep(model, integers=integers)
