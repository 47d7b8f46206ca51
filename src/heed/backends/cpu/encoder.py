"""An encoder in compiled code, on a CPU: `csrc/encoder.h` from Python. The twin is `Transformer.encode`."""

import ctypes
from collections.abc import Sequence
from typing import ClassVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.cpu.layers import Stack
from heed.backends.cpu.library import check_done, native, threads_for
from heed.backends.cpu.pointers import pointer, pointer_or_none
from heed.model.layers import Encoder, EncoderLayer
from heed.model.layout import AttentionPattern, Packed
from heed.model.transformer import Transformer
from heed.model.vocabulary import check_ids

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
        embedded = self._positions(self._vocabulary.source(src), pattern).contiguous()
        rotation = self._positions.rotation(pattern, embedded.dtype)
        found, tokens, width = torch.empty_like(embedded), len(src), self._stack.model.width
        turned = (None, None) if rotation is None else (rotation.cos, rotation.sin)
        sentences, half = len(layout.cu_seqlens) - 1, width // self._stack.model.heads // 2
        sources = _Sources(
            pointer(embedded, torch.float32, tokens, width), pointer(layout.sequence_ids, torch.int64, tokens),
            pointer(layout.cu_seqlens, torch.int64, sentences + 1), sentences, tokens, layout.longest,
            *(pointer_or_none(one, torch.float32, tokens, 1, half) for one in turned),
            pointer(found, torch.float32, tokens, width),
        )  # fmt: skip
        threads = threads_for(self._stack.bytes * len(src))
        failed = self._run(ctypes.byref(self._stack.model), ctypes.byref(sources), threads)
        check_done(failed, "an encoder pass", f"a layout of {tokens} tokens")
        return found
