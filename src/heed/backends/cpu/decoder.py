"""Encoder and decoder step on a CPU, each in one call of compiled C: `csrc/encoder.h` and `csrc/decoder.h` from Python.

Enters: a float32 model, whose matrices may be quantised to int8. Leaves: a stepper. Calling one torch operator after
another would take longer than the arithmetic. The references are `Transformer.encode` and `Transformer.step`.
"""

import ctypes
from collections.abc import Sequence
from typing import ClassVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.cpu.layers import LayerStack
from heed.backends.cpu.library import check_status, native, threads_for
from heed.backends.cpu.pointers import pointer, pointer_or_none
from heed.backends.fused_weights import cross_kv_projections, fuse_linear
from heed.backends.kv_cache import DecoderState, PackedSources, PositionTable
from heed.backends.torch.linear import MakeLinear
from heed.model.embeddings import check_ids
from heed.model.layers import Decoder, DecoderLayer, Encoder, EncoderLayer
from heed.model.layout import AttentionPattern, Packed
from heed.model.positions import Rotation
from heed.model.transformer import Transformer

_address, _integer = ctypes.c_void_p, ctypes.c_int64


class _EncoderInput(ctypes.Structure):
    _fields_: ClassVar = [
        *((name, _address) for name in ("embedded", "sequence_ids", "cu_seqlens")),
        *((name, _integer) for name in ("sentences", "tokens", "max_seqlen")),
        *((name, _address) for name in ("cos", "sin", "output")),
    ]


class NativeEncoder:
    """The encoder's layers in C, from a snapshot of the model's weights; embeddings are looked up by torch."""

    def __init__(self, model: Transformer, *, int8: bool) -> None:
        encoder = cast("Encoder", model.encoder)
        layers = cast("Sequence[EncoderLayer]", list(encoder.layers))
        self._stack = LayerStack(model.config, layers, encoder.norm, int8=int8)
        self._vocabulary, self._positions, self._run = model.vocabulary, encoder.positions, native().heed_encode
        self._vocab_size = model.config.source_vocab_size or model.config.vocab_size

    @torch.no_grad()
    def __call__(self, src: Int[Tensor, "N"], layout: Packed) -> Float[Tensor, "N D"]:
        check_ids("src", src, self._vocab_size, ("tokens",))
        pattern = AttentionPattern.between(layout, layout)
        embedded = self._positions(self._vocabulary.embed_source(src), pattern).contiguous()
        rotation = self._positions.rotation(pattern, embedded.dtype)
        output, tokens, d_model = torch.empty_like(embedded), len(src), self._stack.model.d_model
        angles = (None, None) if rotation is None else (rotation.cos, rotation.sin)
        sentences, half = len(layout.cu_seqlens) - 1, d_model // self._stack.model.heads // 2
        encoder_input = _EncoderInput(
            pointer(embedded, torch.float32, tokens, d_model), pointer(layout.sequence_ids, torch.int64, tokens),
            pointer(layout.cu_seqlens, torch.int64, sentences + 1), sentences, tokens, layout.max_seqlen,
            *(pointer_or_none(angle, torch.float32, tokens, 1, half) for angle in angles),
            pointer(output, torch.float32, tokens, d_model),
        )  # fmt: skip
        threads = threads_for(self._stack.bytes * len(src))
        status = self._run(ctypes.byref(self._stack.model), ctypes.byref(encoder_input), threads)
        check_status(status, "an encoder pass", f"a layout of {tokens} tokens")
        return output


class _StepInput(ctypes.Structure):
    _fields_: ClassVar = [
        ("ids", _address),
        *((name, _integer) for name in ("sentences", "beam", "length", "cached")),
        ("sentence_index", _address),
        *((name, _address) for name in ("position", "cos", "sin", "kv_cache")),
        *((name, _integer) for name in ("capacity", "used")),
        *((name, _address) for name in ("kv_index", "source_kv")),
        ("max_source", _integer),
        *((name, _address) for name in ("source_lengths", "logits")),
    ]


class NativeStep:
    """A decoder step in C, from a snapshot of the model's weights."""

    def __init__(self, model: Transformer, *, int8: bool) -> None:
        decoder = cast("Decoder", model.decoder)
        layers = cast("Sequence[DecoderLayer]", list(decoder.layers))
        self._stack = LayerStack(model.config, layers, decoder.norm, model.vocabulary, int8=int8)
        self._vocab_size, self._run = model.config.vocab_size, native().heed_decoder_step

    def __call__(
        self,
        ids: Int[Tensor, "R"],
        state: DecoderState,
        position: Float[Tensor, "D"] | None,
        rotation: Rotation | None,
    ) -> Float[Tensor, "R V"]:
        """Logits after the newest token of each row; `state` has been advanced to include it."""
        model, float32, int64 = self._stack.model, torch.float32, torch.int64
        sentences, beam, length, d_model = state.sentences, state.beam, state.length, model.d_model
        logits = torch.empty(sentences * beam, self._vocab_size, dtype=float32, device="cpu")
        ids, source_kv, kv_cache = ids.contiguous(), state.source_kv.contiguous(), state.kv_cache.data
        kv_index = None if state.kv_index is None else state.kv_index.contiguous()
        angles = (None, None) if rotation is None else (rotation.cos, rotation.sin)
        layers, heads, head_width = model.layer_count, model.heads, d_model // model.heads
        cached, capacity, max_source = source_kv.shape[2], kv_cache.shape[4], source_kv.shape[4]
        step_input = _StepInput(
            pointer(ids, int64, sentences * beam), sentences, beam, length, cached,
            pointer_or_none(state.sentence_index, int64, sentences), pointer_or_none(position, float32, d_model),
            *(pointer_or_none(angle, float32, 1, head_width // 2) for angle in angles),
            pointer(kv_cache, float32, layers, 2, cached, heads, capacity, head_width), capacity, state.columns - beam,
            pointer_or_none(kv_index, int64, sentences, beam, length),
            pointer(source_kv, float32, layers, 2, cached, heads, max_source, head_width), max_source,
            pointer(state.source_lengths, int64, sentences), pointer(logits, float32, *logits.shape),
        )  # fmt: skip
        status = self._run(ctypes.byref(model), ctypes.byref(step_input), threads_for(self._stack.bytes * len(ids)))
        check_status(status, "a decoder step", f"ids from 0 to {self._vocab_size - 1}, found {ids.tolist()[:16]}")
        return logits


class NativeDecoder:
    """Stepper in compiled C, in float32 or int8, from a snapshot of a model's weights; it holds no reference to it."""

    def __init__(self, model: Transformer, linear: MakeLinear, *, int8: bool = False) -> None:
        config, decoder = model.config, cast("Decoder", model.decoder)
        self._pad_id, self._shape = config.pad_id, (config.decoder_layers, 2, config.heads, config.head_width)
        self.encode = NativeEncoder(model, int8=int8)
        self.native_step = NativeStep(model, int8=int8)
        self._positions = PositionTable(decoder.positions, model.vocabulary.embedding.weight.detach())
        self._source_kv = linear(*fuse_linear(cross_kv_projections(decoder)))

    @torch.no_grad()
    def start(self, src: Int[Tensor, "B S"]) -> DecoderState:
        """Encode the source, as `Transformer.start`."""
        sources = PackedSources.of(src, self._pad_id)
        return sources.initial_state(self._source_kv(self.encode(sources.ids, sources.layout)), self._shape)

    @torch.no_grad()
    def step(self, ids: Int[Tensor, "R"], state: DecoderState) -> tuple[Float[Tensor, "R V"], DecoderState]:
        """Logits after the next token of each row, and the state that includes it."""
        position, rotation = self._positions.at(state.length)
        state = state.reserve().advance()
        return self.native_step(ids, state, position, rotation), state
