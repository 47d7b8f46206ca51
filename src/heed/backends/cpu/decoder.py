"""A step of decoding in compiled code, on a CPU: `csrc/decoder.h` from Python.

Enters: a model in float32, whose matrices may become integers of 8 bits. Leaves: what `LeanDecoder` calls instead of
one operator after another, which would take longer than the arithmetic.
"""

import ctypes
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.cpu.encoder import CompiledEncoder
from heed.backends.cpu.layers import Stack
from heed.backends.cpu.packed_linear import can_compile, check_done, integers_are_quick, native, threads_for
from heed.backends.cpu.pointers import pointer, pointer_or_none
from heed.backends.kv_cache import Hypotheses
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
        model, float32, int64 = self._stack.model, torch.float32, torch.int64
        sentences, wide, length, width = state.sentences, state.width, state.length, model.width
        found = torch.empty(sentences * wide, self._words, dtype=float32, device="cpu")
        ids, memory, room = ids.contiguous(), state.memory.contiguous(), state.room.numbers
        written = None if state.written is None else state.written.contiguous()
        turned = (None, None) if rotation is None else (rotation.cos, rotation.sin)
        held, columns, tokens, head = memory.shape[2], room.shape[4], memory.shape[4], width // model.heads
        seen = _Seen(
            pointer(ids, int64, sentences * wide), sentences, wide, length, held,
            pointer_or_none(state.places, int64, sentences), pointer_or_none(place, float32, width),
            *(pointer_or_none(one, float32, 1, head // 2) for one in turned),
            pointer(room, float32, model.count, 2, held, model.heads, columns, head), columns, state.columns - wide,
            pointer_or_none(written, int64, sentences, wide, length),
            pointer(memory, float32, model.count, 2, held, model.heads, tokens, head), tokens,
            pointer(state.lengths, int64, sentences), pointer(found, float32, *found.shape),
        )  # fmt: skip
        failed = self._run(ctypes.byref(model), ctypes.byref(seen), threads_for(self._stack.bytes * len(ids)))
        check_done(failed, "a decoder step", f"ids from 0 to {self._words - 1}; these are {ids.tolist()[:16]}")
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
