"""A step of decoding in compiled code, for a few hypotheses of a model on a CPU: `native/step.c` from Python.

Enters: a model in float32, whose matrices may become integers of 8 bits. Leaves: what `LeanDecoder` calls where it has
few rows, for then calling one operator after another takes longer than the arithmetic. The structures are those of C.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from heed.kernels.compiled import CannotCompileError, library
from heed.kernels.hypotheses import Hypotheses
from heed.model.attention import MultiHeadAttention
from heed.model.layers import Decoder, DecoderLayer, Residual
from heed.model.positions import Rotation
from heed.model.rounded import rounded
from heed.model.transformer import Transformer

MOST_ROWS = 16
_FOR_A_THREAD = 2**22  # bytes of weights: with fewer, waiting for each other takes longer than reading
_ACTIVATIONS = ("relu", "gelu", "swish", "swiglu")
_ORDERS = ("post", "pre", "sandwich")
_address, _integer = ctypes.c_void_p, ctypes.c_int64


class _Matrix(ctypes.Structure):
    _fields_: ClassVar = [
        *((name, _address) for name in ("weight", "scales", "sums", "bias")),
        *((name, _integer) for name in ("outputs", "inputs")),
    ]


class _Norm(ctypes.Structure):
    _fields_: ClassVar = [("weight", _address), ("bias", _address), ("eps", ctypes.c_float)]


class _Layer(ctypes.Structure):
    _fields_: ClassVar = [
        *((name, _Matrix) for name in ("own", "output", "ask", "gather", "widen", "gate", "narrow")),
        *((name, _Norm * 3) for name in ("norm", "outer")),
    ]


class _Model(ctypes.Structure):
    _fields_: ClassVar = [
        ("layers", ctypes.POINTER(_Layer)),
        *((name, _integer) for name in ("count", "width", "inner", "heads", "activation", "order")),
        ("embedding", _address),
        ("scale", ctypes.c_float),
        ("last", _Norm),
        ("logits", _Matrix),
    ]


class _Seen(ctypes.Structure):
    _fields_: ClassVar = [
        ("ids", _address),
        *((name, _integer) for name in ("sentences", "wide", "length")),
        *((name, _address) for name in ("place", "cos", "sin", "room")),
        *((name, _integer) for name in ("columns", "filled")),
        *((name, _address) for name in ("written", "memory")),
        ("tokens", _integer),
        *((name, _address) for name in ("real", "found")),
    ]


class CompiledStep:
    """A decoder's step; the weights are those that the model had when this was made."""

    def __init__(self, model: Transformer, *, integers: bool) -> None:
        config, decoder = model.config, cast("Decoder", model.decoder)
        self._integers = integers
        self._kept: list[Tensor] = []  # what the structures point to
        layers = [self._layer(layer) for layer in cast("Sequence[DecoderLayer]", decoder.layers)]
        self._model = _Model(
            (_Layer * len(layers))(*layers), len(layers), config.d_model, config.d_ff, config.heads,
            _ACTIVATIONS.index(config.activation), _ORDERS.index(config.norm),
            self._at(model.vocabulary.embedding.weight), model.vocabulary.scale,
            self._norm(decoder.norm), self._matrix(*model.vocabulary.output_matrix()),
        )  # fmt: skip
        self._words = config.vocab_size
        self._threads = max(1, sum(one.nbytes for one in self._kept) // _FOR_A_THREAD)
        self._run = _native()

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
        held = [None if one is None else one.contiguous() for one in (state.written, state.real)]
        written, real = (None if one is None else one.data_ptr() for one in held)
        turned = (None, None) if rotation is None else (rotation.cos.data_ptr(), rotation.sin.data_ptr())
        seen = _Seen(
            ids.data_ptr(), memory.shape[2], state.width, state.length,
            None if place is None else place.data_ptr(), *turned, room.data_ptr(),
            room.shape[4], state.columns - state.width, written, memory.data_ptr(), memory.shape[4], real,
            found.data_ptr(),
        )  # fmt: skip
        if self._run(ctypes.byref(self._model), ctypes.byref(seen), min(self._threads, torch.get_num_threads())):
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
            self._linear(inner.widen), _Matrix() if inner.gate is None else self._linear(inner.gate),
            self._linear(inner.narrow), (_Norm * 3)(*(self._norm(one.norm) for one in around)),
            (_Norm * 3)(*(self._norm(one.outer_norm) for one in around)),
        )  # fmt: skip

    def _linear(self, part: nn.Linear) -> _Matrix:
        return self._matrix(part.weight, part.bias)

    def _matrix(self, weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, "outputs"] | None) -> _Matrix:
        scales, sums = None, None
        if self._integers:
            weight, in_steps = rounded(weight)
            scales, sums = self._at(in_steps), self._at(weight.sum(1, dtype=torch.int32))
        return _Matrix(self._at(weight), scales, sums, None if bias is None else self._at(bias), *weight.shape)

    def _norm(self, part: nn.Module | None) -> _Norm:
        if not isinstance(part, nn.LayerNorm):
            return _Norm()
        return _Norm(self._at(part.weight), self._at(part.bias), part.eps)

    def _at(self, numbers: Tensor) -> int:
        self._kept.append(numbers.detach().contiguous())
        return self._kept[-1].data_ptr()


def compiled_step(model: Transformer, *, integers: bool = False) -> CompiledStep | None:
    """A model's step in compiled code, where it can be had."""
    if model.vocabulary.embedding.weight.dtype != torch.float32 or missing_for_compiled_steps():
        return None
    with torch.no_grad():
        return CompiledStep(model, integers=integers)


def missing_for_compiled_steps() -> str | None:
    """Why this machine takes no steps in compiled code, if it does not."""
    try:
        _native()
    except CannotCompileError as error:
        return str(error)
    return None


@cache
def _native() -> "ctypes._NamedFuncPointer":
    run = library(Path(__file__).parent / "native" / "step.c").heed_step
    run.argtypes, run.restype = (_address, _address, _integer), ctypes.c_int
    return run
