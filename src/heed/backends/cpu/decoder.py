"""Encoder and decoder step in one call of compiled code each: `csrc/encoder.h` and `csrc/decoder.h` from Python.

Enters: a model in float32, whose matrices may be quantised to int8. Leaves: a stepper. Calling one torch operator after
another would take longer than the arithmetic. The references are `Transformer.encode` and `Transformer.step`.
"""

import ctypes
from collections.abc import Sequence
from typing import ClassVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.cpu.layers import Stack
from heed.backends.cpu.library import check_done, native, threads_for
from heed.backends.cpu.pointers import pointer, pointer_or_none
from heed.backends.fused_weights import cross_kv_projections, joined
from heed.backends.kv_cache import Hypotheses, PackedSources, PositionTable
from heed.backends.torch.linear import MakeLinear
from heed.model.embeddings import check_ids
from heed.model.layers import Decoder, DecoderLayer, Encoder, EncoderLayer
from heed.model.layout import AttentionPattern, Packed
from heed.model.positions import Rotation
from heed.model.transformer import Transformer

_address, _integer = ctypes.c_void_p, ctypes.c_int64


class _Sources(ctypes.Structure):
    _fields_: ClassVar = [
        *((name, _address) for name in ("embedded", "owners", "offsets")),
        *((name, _integer) for name in ("sentences", "tokens", "longest")),
        *((name, _address) for name in ("cos", "sin", "found")),
    ]


class CompiledEncoder:
    """Encodes with the weights that a model had when this was made; it keeps only what makes vectors of words."""

    def __init__(self, model: Transformer, *, integers: bool) -> None:
        encoder = cast("Encoder", model.encoder)
        layers = cast("Sequence[EncoderLayer]", list(encoder.layers))
        self._stack = Stack(model.config, layers, encoder.norm, integers=integers)
        self._vocabulary, self._positions, self._run = model.vocabulary, encoder.positions, native().heed_encode
        self._words = model.config.source_vocab_size or model.config.vocab_size

    @torch.no_grad()
    def __call__(self, src: Int[Tensor, "N"], layout: Packed) -> Float[Tensor, "N D"]:
        """Each token in the light of its sentence."""
        check_ids("src", src, self._words, ("tokens",))
        pattern = AttentionPattern.between(layout, layout)
        embedded = self._positions(self._vocabulary.embed_source(src), pattern).contiguous()
        rotation = self._positions.rotation(pattern, embedded.dtype)
        found, tokens, width = torch.empty_like(embedded), len(src), self._stack.model.width
        turned = (None, None) if rotation is None else (rotation.cos, rotation.sin)
        sentences, half = len(layout.cu_seqlens) - 1, width // self._stack.model.heads // 2
        sources = _Sources(
            pointer(embedded, torch.float32, tokens, width), pointer(layout.sequence_ids, torch.int64, tokens),
            pointer(layout.cu_seqlens, torch.int64, sentences + 1), sentences, tokens, layout.max_seqlen,
            *(pointer_or_none(one, torch.float32, tokens, 1, half) for one in turned),
            pointer(found, torch.float32, tokens, width),
        )  # fmt: skip
        threads = threads_for(self._stack.bytes * len(src))
        failed = self._run(ctypes.byref(self._stack.model), ctypes.byref(sources), threads)
        check_done(failed, "an encoder pass", f"a layout of {tokens} tokens")
        return found


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


class NativeDecoder:
    """Encodes and steps as a model does, each in one call of compiled code, in float32 or int8.

    The weights are those that the model had when this was made; it keeps no model.
    """

    def __init__(self, model: Transformer, linear: MakeLinear, *, int8: bool = False) -> None:
        config, decoder = model.config, cast("Decoder", model.decoder)
        self._pad_id, self._shape = config.pad_id, (config.decoder_layers, 2, config.heads, config.head_width)
        self.encode = CompiledEncoder(model, integers=int8)
        self.native_step = CompiledStep(model, integers=int8)
        self._positions = PositionTable(decoder.positions, model.vocabulary.embedding.weight.detach())
        self._memory = linear(*joined(cross_kv_projections(decoder)))

    @torch.no_grad()
    def start(self, src: Int[Tensor, "B S"]) -> Hypotheses:
        """The source encoded, as `Transformer.start` does it."""
        sources = PackedSources.of(src, self._pad_id)
        return sources.hypotheses(self._memory(self.encode(sources.ids, sources.layout)), self._shape)

    @torch.no_grad()
    def step(self, ids: Int[Tensor, "R"], state: Hypotheses) -> tuple[Float[Tensor, "R V"], Hypotheses]:
        """Logits after the next token of each row, and the state that knows it."""
        place, rotation = self._positions.at(state.length)
        state = state.with_room().longer()
        return self.native_step(ids, state, place, rotation), state
