"""The Transformer: encoder-decoder, encoder-only or decoder-only (paper, figure 1).

Enters: token ids, padded rows unless a layout says otherwise. Leaves: logits. One set of layers, three ways through:

    logits = model(src, tgt_in)               every position at once: training, scoring, looking inside
    memory = model.encode(src)                only the encoder
    cache = model.start(src)                  one step at a time: decoding
    logits, cache = model.step(ids, cache)

Knows nothing of text, loss or search.
"""

import copy
import math
from collections.abc import Callable
from typing import TypeAlias, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from heed.config import ModelConfig
from heed.errors import InputError
from heed.model.attention import AttentionFn, MultiHeadAttention, fused_attention
from heed.model.cache import KVCache, LayerKVCache
from heed.model.embeddings import ClassifierHead, Embeddings, check_ids, check_layout
from heed.model.layers import Decoder, Encoder
from heed.model.layout import AttentionPattern, Packed, Padded


def initialize_weights(model: nn.Module, config: ModelConfig) -> None:
    """Give every weight its first value, from torch's global random state.

    | weight                               | first value                         | why                                 |
    |--------------------------------------|-------------------------------------|-------------------------------------|
    | word embeddings, and the tied output | normal, deviation d_model^-0.5      | times √d_model they are about 1     |
    | learned positions                    | normal, deviation d_model^-0.5      | small beside the words at the start |
    | W_O, feed-forward, untied output     | uniform ±√(6 / (inputs + outputs)), | signals keep their size, forward    |
    |                                      | "Xavier"                            | and backward                        |
    | W_Q, W_K, W_V                        | the same divided by √2: Xavier for  | attention starts more even, and     |
    |                                      | the three as one matrix             | learns sooner what to look at       |
    | every bias                           | 0                                   |                                     |
    | layer norm                           | scale 1, shift 0                    |                                     |
    """
    for module in model.modules():
        match module:
            case nn.Embedding():
                nn.init.normal_(module.weight, std=1 / math.sqrt(config.d_model))
            case nn.Linear():
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
            case nn.LayerNorm():
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            for projection in (module.query, module.key, module.value):
                nn.init.xavier_uniform_(projection.weight, gain=1 / math.sqrt(2))


Module = TypeVar("Module", bound=nn.Module)
Given: TypeAlias = Padded | Packed | None  # a layout, or none: padded rows


class Transformer(nn.Module):
    """An encoder-decoder, encoder-only or decoder-only Transformer, as `config.kind` says.

    Every call takes `attend`, the function that does attention's arithmetic: `fused_attention` unless told otherwise.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = Embeddings(config)
        self.encoder = Encoder(config) if config.has_encoder else None
        self.decoder = Decoder(config) if config.has_decoder else None
        self.classes = None if config.labels is None else ClassifierHead(config, config.labels)
        initialize_weights(self, config)

    def forward(
        self,
        src: Int[Tensor, "*sources"] | None = None,
        tgt_in: Int[Tensor, "*targets"] | None = None,
        src_layout: Given = None,
        tgt_layout: Given = None,
        *,
        cross_mask: Bool[Tensor, "B T S"] | None = None,
        attend: AttentionFn = fused_attention,
    ) -> Float[Tensor, "*tokens V"]:
        """Logits for every target position; for every source position of an encoder-only model.

        An encoder that has classes gives logits of these, one row a sentence.

        src, tgt_in     (B, S) and (B, T), padded with `pad_id`; or (N,) with its packed layout
        cross_mask      which source positions each target position may attend to, as rows; padding is masked anyway
        """
        hidden = self.hidden(src, tgt_in, src_layout, tgt_layout, cross_mask=cross_mask, attend=attend)
        if self.classes is not None:
            return self.classes(hidden, self._source_layout(self._needed("src", src), src_layout))
        return self.vocabulary.logits(hidden)

    def hidden(
        self,
        src: Int[Tensor, "*sources"] | None = None,
        tgt_in: Int[Tensor, "*targets"] | None = None,
        src_layout: Given = None,
        tgt_layout: Given = None,
        *,
        cross_mask: Bool[Tensor, "B T S"] | None = None,
        attend: AttentionFn = fused_attention,
    ) -> Float[Tensor, "*tokens D"]:
        """What `forward` turns into logits: the output of the last layer."""
        if self.decoder is None:
            self._refuse(tgt_in=tgt_in, cross_mask=cross_mask)
            return self.encode(self._needed("src", src), src_layout, attend=attend)
        tgt_in = self._needed("tgt_in", tgt_in)
        targets = self._target_layout(tgt_in, tgt_layout)
        embedded = self.vocabulary.embed_target(tgt_in)
        back = AttentionPattern.between(targets, targets, causal=True)
        if self.encoder is None:
            self._refuse(src=src, cross_mask=cross_mask)
            return self.decoder(embedded, back, attend)
        src = self._needed("src", src)
        sources = self._source_layout(src, src_layout)
        across = AttentionPattern.between(targets, sources, only=cross_mask)
        memory = self.decoder.keys_values(self._encode(src, sources, attend))
        return self.decoder(embedded, back, attend, memory=memory, cross_pattern=across)

    def encode(
        self, src: Int[Tensor, "*sources"], src_layout: Given = None, *, attend: AttentionFn = fused_attention
    ) -> Float[Tensor, "*sources D"]:
        """The memory: contextual hidden states of the source tokens."""
        return self._encode(src, self._source_layout(src, src_layout), attend)

    def _encode(self, src: Tensor, layout: Padded | Packed, attend: AttentionFn) -> Tensor:
        if self.encoder is None:
            raise InputError("kind = 'decoder' has no encoder to encode with")
        return self.encoder(self.vocabulary.embed_source(src), AttentionPattern.between(layout, layout), attend)

    @torch.no_grad()
    def start(
        self,
        src: Int[Tensor, "*sources"] | None = None,
        src_layout: Given = None,
        *,
        rows: int | None = None,
        attend: AttentionFn = fused_attention,
    ) -> KVCache:
        """The cache before the first step, with the source encoded. rows: how many, of a decoder-only model."""
        decoder = self._decoder_to_step_with()
        past = tuple(LayerKVCache() for _ in decoder.layers)
        if self.encoder is None:
            self._refuse(src=src)
            if rows is None or rows < 1:
                raise InputError(f"kind = 'decoder' starts with at least one row, found rows = {rows}")
            device = self.vocabulary.embedding.weight.device
            return KVCache(1, torch.ones(rows, 0, dtype=torch.bool, device=device), past)
        self._refuse(rows=rows)
        src = self._needed("src", src)
        layout = self._source_layout(src, src_layout)
        memory = layout.to_rows(self._encode(src, layout, attend))
        return KVCache(1, layout.token_mask[:, :0], past, layout.token_mask, decoder.keys_values(memory))

    @torch.no_grad()
    def step(
        self,
        ids: Int[Tensor, "R T"],
        cache: KVCache,
        *,
        cross_mask: Bool[Tensor, "R T S"] | None = None,
        attend: AttentionFn = fused_attention,
    ) -> tuple[Float[Tensor, "R T V"], KVCache]:
        """Logits after each of the next T tokens of every row, and the cache that knows them.

        Rows may differ in length: `pad_id` adds nothing to its row.
        """
        decoder = self._decoder_to_step_with()
        if self.encoder is None:
            self._refuse(cross_mask=cross_mask)
        check_ids("ids", ids, self.config.vocab_size, ("rows", "tokens"))
        token_mask = ids != self.config.pad_id
        earlier, cache = cache.tokens_so_far(), cache.advance(token_mask)
        new = Padded.from_mask(token_mask, earlier)
        back, across = cache.self_pattern(new), cache.cross_pattern(new, cross_mask)
        hidden = decoder(self.vocabulary.embed_target(ids), back, attend, cache.past, cache.memory, across)
        return self.vocabulary.logits(hidden), cache

    def _decoder_to_step_with(self) -> Decoder:
        if self.decoder is None:
            raise InputError("kind = 'encoder' has no decoder to step with")
        return self.decoder

    def _source_layout(self, src: Tensor, layout: Given) -> Padded | Packed:
        return _layout("src", src, self.config.source_vocab_size or self.config.vocab_size, layout, self.config.pad_id)

    def _target_layout(self, tgt_in: Tensor, layout: Given) -> Padded | Packed:
        return _layout("tgt_in", tgt_in, self.config.vocab_size, layout, self.config.pad_id)

    def _needed(self, name: str, given: Tensor | None) -> Tensor:
        if given is None:
            raise InputError(f"kind = {self.config.kind!r} needs {name}, which was not given")
        return given

    def _refuse(self, **useless: object) -> None:
        for name, given in useless.items():
            if given is not None:
                raise InputError(f"kind = {self.config.kind!r} has no use for {name}, which was given")


def _layout(name: str, ids: Tensor, vocab_size: int, layout: Given, pad_id: int) -> Padded | Packed:
    if layout is None:
        check_ids(name, ids, vocab_size, ("sentences", "tokens"))
        return Padded.from_ids(ids, pad_id)
    check_ids(name, ids, vocab_size, ("sentences", "tokens") if isinstance(layout, Padded) else ("tokens",))
    check_layout(name, ids, layout)
    return layout


def copy_sharing_weights(model: Transformer) -> Transformer:
    """A copy of a model with modules of its own and the same weights: hooks and replaced modules stay in the copy."""
    shared = {id(one): one for one in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def replace_modules(model: nn.Module, kind: type[Module], make: Callable[[Module], nn.Module]) -> None:
    """Replace every submodule of a class by what `make` makes of it, in the same training or evaluation mode."""
    for parent in list(model.modules()):
        for name, part in list(parent.named_children()):
            if isinstance(part, kind):
                setattr(parent, name, make(part).train(part.training))
