"""A step of decoding in compiled code, on a CPU: `native/step.h` from Python.

Enters: a model in float32, whose matrices may become integers of 8 bits. Leaves: what `LeanDecoder` calls instead of
one operator after another, which would take longer than the arithmetic.
"""

import ctypes
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.kernels.compiled_encoder import CompiledEncoder
from heed.kernels.compiled_layers import Stack
from heed.kernels.compiled_products import can_compile, integers_are_quick, native, threads_for
from heed.kernels.hypotheses import Hypotheses
from heed.model.layers import Decoder, DecoderLayer
from heed.model.positions import Rotation
from heed.model.transformer import Transformer

_address, _integer = ctypes.c_void_p, ctypes.c_int64


class _Seen(ctypes.Structure):
    _fields_: ClassVar = [
        ("ids", _address),
        *((name, _integer) for name in ("sentences", "wide", "length", "held")),
        ("places", _address),
        *((name, _address) for name in ("place", "cos", "sin", "room")),
        *((name, _integer) for name in ("columns", "filled")),
        *((name, _address) for name in ("written", "memory")),
        ("tokens", _integer),
        *((name, _address) for name in ("lengths", "found")),
    ]


class CompiledStep:
    """A decoder's step; the weights are those that the model had when this was made."""

    def __init__(self, model: Transformer, *, integers: bool) -> None:
        decoder = cast("Decoder", model.decoder)
        layers = cast("Sequence[DecoderLayer]", list(decoder.layers))
        self._stack = Stack(model.config, layers, decoder.norm, model.vocabulary, integers=integers)
        self._words, self._run = model.config.vocab_size, native().heed_step

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
            ids.data_ptr(), state.sentences, state.width, state.length,
            memory.shape[2], None if state.places is None else state.places.data_ptr(),
            None if place is None else place.data_ptr(), *turned, room.data_ptr(),
            room.shape[4], state.columns - state.width, None if written is None else written.data_ptr(),
            memory.data_ptr(), memory.shape[4], state.lengths.data_ptr(), found.data_ptr(),
        )  # fmt: skip
        threads = threads_for(self._stack.bytes * len(ids))
        if self._run(ctypes.byref(self._stack.model), ctypes.byref(seen), threads):
            raise MemoryError("there is no memory for a step of decoding")
        return found


class CompiledModel(NamedTuple):
    """Both halves of a model in compiled code."""

    encode: CompiledEncoder
    step: CompiledStep


def compiled_model(model: Transformer, *, integers: bool = False) -> CompiledModel | None:
    """A model that translates in compiled code, where that can be had."""
    if not can_compile(model.vocabulary.embedding.weight) or (integers and not integers_are_quick()):
        return None
    return CompiledModel(CompiledEncoder(model, integers=integers), CompiledStep(model, integers=integers))
