"""Encoder, decoder step and whole search on a CPU, each in one call of compiled C.

Enters: a float32 model, whose matrices may be quantised to int8. Leaves: a stepper that also runs whole searches.
Calling one torch operator after another would take longer than the arithmetic. The references are `Transformer.encode`,
`Transformer.step` and `decoding/search.py`.
"""

import ctypes
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from heed.artifacts.shapes import weight_shapes
from heed.backends.cpu.layers import LayerStack, embeddings
from heed.backends.cpu.library import check_status, engine, team, threads_for
from heed.backends.cpu.pointers import pointer, pointer_or_none
from heed.backends.cpu.positions import PositionsStruct
from heed.backends.cpu.search import EncoderInput, NativeSearch
from heed.backends.kv_cache import DecoderState, PackedSources
from heed.backends.protocol import Hypothesis, Prefixes, SearchMonitor, Sources
from heed.backends.torch.linear import call_packed
from heed.errors import InputError
from heed.model.embeddings import check_ids
from heed.model.layout import Packed
from heed.model.transformer import Transformer
from heed.search_config import SearchConfig

_address, _integer = ctypes.c_void_p, ctypes.c_int64


def model_weights(model: Transformer) -> dict[str, NDArray[Any]]:
    """The weights of a float32 model on a CPU, by their names in a model folder: views, not copies."""
    return {name: attrgetter(name)(model).detach().numpy() for name in weight_shapes(model.config)}


class NativeEncoder:
    """The encoder in C, from a snapshot of the model's weights."""

    def __init__(self, model: Transformer, *, int8: bool) -> None:
        weights = model_weights(model)
        self.stack = LayerStack(model.config, weights, "encoder", embeddings(weights)["encoder"], int8=int8)
        self._run = engine().encode

    @torch.no_grad()
    def __call__(self, src: Int[Tensor, "N"], layout: Packed) -> Float[Tensor, "N D"]:
        model, tokens, sentences = self.stack.model, len(src), len(layout.cu_seqlens) - 1
        check_ids("src", src, model.vocabulary, ("tokens",))
        positions = self.stack.positions.struct(layout.max_seqlen)
        src, output = src.contiguous(), torch.empty(tokens, model.d_model, dtype=torch.float32, device="cpu")
        encoder_input = EncoderInput(
            pointer(src, torch.int64, tokens), pointer(layout.cu_seqlens, torch.int64, sentences + 1), sentences,
            positions,
        )  # fmt: skip
        if int(layout.cu_seqlens[-1]) != tokens:
            raise InputError(f"src has {tokens} tokens, but its layout is for {int(layout.cu_seqlens[-1])}")
        status = self._run(
            ctypes.byref(model), ctypes.byref(encoder_input), pointer(output, torch.float32, *output.shape),
            *team(threads_for(self.stack.bytes * tokens)),
        )  # fmt: skip
        check_status(status, "an encoder pass", f"a layout of {tokens} tokens")
        return output


class _StepInput(ctypes.Structure):
    _fields_: ClassVar = [
        ("ids", _address),
        *((name, _integer) for name in ("sentences", "beam", "length", "cached")),
        ("sentence_index", _address),
        ("positions", PositionsStruct),
        ("kv_cache", _address),
        *((name, _integer) for name in ("capacity", "used")),
        *((name, _address) for name in ("kv_index", "source_kv")),
        ("max_source", _integer),
        *((name, _address) for name in ("source_lengths", "logits")),
    ]


class NativeStep:
    """A decoder step in C, from a snapshot of the model's weights."""

    def __init__(self, model: Transformer, *, int8: bool) -> None:
        weights = model_weights(model)
        self.stack = LayerStack(model.config, weights, "decoder", embeddings(weights)["decoder"], int8=int8)
        self._run = engine().decoder_step

    def __call__(self, ids: Int[Tensor, "R"], state: DecoderState) -> Float[Tensor, "R V"]:
        """Logits after the newest token of each row; `state` has been advanced to include it."""
        model, float32, int64 = self.stack.model, torch.float32, torch.int64
        sentences, beam, length, d_model = state.sentences, state.beam, state.length, model.d_model
        logits = torch.empty(sentences * beam, model.vocabulary, dtype=float32, device="cpu")
        ids, source_kv, kv_cache = ids.contiguous(), state.source_kv.contiguous(), state.kv_cache.data
        kv_index = None if state.kv_index is None else state.kv_index.contiguous()
        positions = self.stack.positions.struct(length)
        layers, heads, head_width = model.layer_count, model.heads, d_model // model.heads
        cached, capacity, max_source = source_kv.shape[2], kv_cache.shape[4], source_kv.shape[4]
        step_input = _StepInput(
            pointer(ids, int64, sentences * beam), sentences, beam, length, cached,
            pointer_or_none(state.sentence_index, int64, sentences), positions,
            pointer(kv_cache, float32, layers, 2, cached, heads, capacity, head_width), capacity, state.columns - beam,
            pointer_or_none(kv_index, int64, sentences, beam, length),
            pointer(source_kv, float32, layers, 2, cached, heads, max_source, head_width), max_source,
            pointer(state.source_lengths, int64, sentences), pointer(logits, float32, *logits.shape),
        )  # fmt: skip
        threads = threads_for(self.stack.bytes * len(ids))
        status = self._run(ctypes.byref(model), ctypes.byref(step_input), *team(threads))
        check_status(status, "a decoder step", f"ids from 0 to {model.vocabulary - 1}, found {ids.tolist()[:16]}")
        return logits


class NativeDecoder:
    """Stepper and whole search in compiled C, in float32 or int8, from a snapshot of a model's weights.

    It holds no reference to the model.
    """

    def __init__(self, model: Transformer, *, int8: bool = False) -> None:
        config = model.config
        self._pad_id, self._shape = config.pad_id, (config.decoder_layers, 2, config.heads, config.head_width)
        self.encode, self.native_step = NativeEncoder(model, int8=int8), NativeStep(model, int8=int8)
        self._search = NativeSearch(config, (self.encode.stack, self.native_step.stack))

    @torch.no_grad()
    def start(self, src: Int[Tensor, "B S"]) -> DecoderState:
        """Encode the source, as `Transformer.start`."""
        sources = PackedSources.of(src, self._pad_id)
        output = self.encode(sources.ids, sources.layout)
        keys_values = torch.cat([call_packed(project, output) for project in self.native_step.stack.cross_kv], -1)
        return sources.initial_state(keys_values, self._shape)

    @torch.no_grad()
    def step(self, ids: Int[Tensor, "R"], state: DecoderState) -> tuple[Float[Tensor, "R V"], DecoderState]:
        """Logits after the next token of each row, and the state that includes it."""
        state = state.reserve().advance()
        return self.native_step(ids, state), state

    def search(
        self,
        sources: Sources,
        max_lengths: Sequence[int],
        config: SearchConfig,
        prefixes: Prefixes = None,
        monitor: SearchMonitor | None = None,
    ) -> list[list[Hypothesis]] | None:
        """The best hypotheses of each source, best first; None: the stepwise search runs, or says what is wrong."""
        return self._search(sources, max_lengths, config, prefixes, monitor)
