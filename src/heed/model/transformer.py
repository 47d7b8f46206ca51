"""The Transformer: encoder-decoder, encoder-only or decoder-only (paper, figure 1).

Enters: token ids, padded unless a layout is given. Leaves: logits. Three entry points:

    logits = model(src, tgt_in)               all positions at once (teacher forcing): training, scoring, observing
    memory = model.encode(src)                the encoder only
    cache = model.start(src)                  incremental decoding with a KV cache
    logits, cache = model.step(ids, cache)

Knows nothing of text, loss or search.
"""

import copy
import math
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from heed.config import ModelConfig
from heed.errors import InputError
from heed.model.attention import AttentionFn, MultiHeadAttention, fused_attention
from heed.model.cache import KVCache
from heed.model.embeddings import ClassifierHead, Embeddings, check_ids, check_layout
from heed.model.layers import Decoder, Encoder
from heed.model.layout import AttentionPattern, Packed, Padded
from heed.model.rivals.initialization import initialize_rival
from heed.model.rivals.layers import RivalDecoder, RivalEncoder


def initialize_weights(model: nn.Module, config: ModelConfig) -> None:
    """Initialise every weight, drawing from torch's global random state.

    | weight                               | initial value                        | why                                |
    |--------------------------------------|--------------------------------------|------------------------------------|
    | token embeddings, tied output        | normal, std = d_model^-0.5           | std 1 after scaling by √d_model    |
    | learned positions                    | normal, std = d_model^-0.5           | small beside the token embeddings  |
    | W_O, feed-forward, untied output     | Xavier uniform:                      | keeps the variance of activations  |
    |                                      | ±√(6 / (fan_in + fan_out))           | and gradients across layers        |
    | W_Q, W_K, W_V                        | Xavier uniform with gain 1/√2, as if | attention starts closer to uniform |
    |                                      | the three were one matrix            | and trains faster                  |
    | every bias                           | 0                                    |                                    |
    | layer norm                           | weight 1, bias 0                     |                                    |
    | LSTM, GRU: input weights             | Xavier uniform, per gate             | as feed-forward weights            |
    | LSTM, GRU: recurrent weights         | orthogonal, per gate                 | keeps the norm of the state        |
    | LSTM: bias of the forget gate        | 1                                    | the cell remembers at first        |
    | gated convolution                    | normal, std = 2 / √fan_in            | the gate halves the activations    |
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
            case nn.LSTM() | nn.GRU() | nn.Conv1d():
                initialize_rival(module)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            for projection in (module.query, module.key, module.value):
                nn.init.xavier_uniform_(projection.weight, gain=1 / math.sqrt(2))


Module = TypeVar("Module", bound=nn.Module)
OptionalLayout: TypeAlias = Padded | Packed | None  # None: padded with `pad_id`


class Transformer(nn.Module):
    """An encoder-decoder, encoder-only or decoder-only Transformer, as `config.kind` says.

    With another `config.mixer` its layers are those of a rival (model/rivals), and nothing else is different.

    Every method that attends takes `attend`, the attention function, such as `fused_attention` or `plain_attention`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = Embeddings(config)
        attends = config.mixer == "attention"
        encoder, decoder = (Encoder, Decoder) if attends else (RivalEncoder, RivalDecoder)
        self.encoder = encoder(config) if config.has_encoder else None
        self.decoder = decoder(config) if config.has_decoder else None
        self.classes = None if config.labels is None else ClassifierHead(config, config.labels)
        initialize_weights(self, config)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.vocabulary.embedding.weight.device

    def forward(
        self,
        src: Int[Tensor, "*sources"] | None = None,
        tgt_in: Int[Tensor, "*targets"] | None = None,
        src_layout: OptionalLayout = None,
        tgt_layout: OptionalLayout = None,
        *,
        cross_mask: Bool[Tensor, "B T S"] | None = None,
        attend: AttentionFn = fused_attention,
    ) -> Float[Tensor, "*tokens V"]:
        """Logits over the vocabulary at every target position, or every source position of an encoder-only model.

        A classifier (`config.labels`) returns logits over its labels instead, one row per text.

        src, tgt_in     (B, S) and (B, T), padded with `pad_id`; or (N,) with a packed layout
        cross_mask      True where a target position may attend to a source position; padding is masked anyway
        """
        hidden = self.hidden(src, tgt_in, src_layout, tgt_layout, cross_mask=cross_mask, attend=attend)
        if self.classes is not None:
            return self.classes(hidden, self._source_layout(self._require("src", src), src_layout))
        return self.vocabulary.logits(hidden)

    def hidden(
        self,
        src: Int[Tensor, "*sources"] | None = None,
        tgt_in: Int[Tensor, "*targets"] | None = None,
        src_layout: OptionalLayout = None,
        tgt_layout: OptionalLayout = None,
        *,
        cross_mask: Bool[Tensor, "B T S"] | None = None,
        attend: AttentionFn = fused_attention,
    ) -> Float[Tensor, "*tokens D"]:
        """The hidden states after the last layer, which `forward` projects to logits."""
        if self.decoder is None:
            self._reject(tgt_in=tgt_in, cross_mask=cross_mask)
            return self.encode(self._require("src", src), src_layout, attend=attend)
        tgt_in = self._require("tgt_in", tgt_in)
        targets = self._target_layout(tgt_in, tgt_layout)
        embedded = self.vocabulary.embed_target(tgt_in)
        pattern = AttentionPattern.between(targets, targets, causal=True)
        if self.encoder is None:
            self._reject(src=src, cross_mask=cross_mask)
            return self.decoder(embedded, pattern, attend)
        src = self._require("src", src)
        sources = self._source_layout(src, src_layout)
        cross_pattern = AttentionPattern.between(targets, sources, extra_mask=cross_mask)
        memory = self.decoder.keys_values(self._encode(src, sources, attend))
        return self.decoder(embedded, pattern, attend, memory=memory, cross_pattern=cross_pattern)

    def encode(
        self, src: Int[Tensor, "*sources"], src_layout: OptionalLayout = None, *, attend: AttentionFn = fused_attention
    ) -> Float[Tensor, "*sources D"]:
        """The memory: the encoder's output, one hidden state per source token."""
        return self._encode(src, self._source_layout(src, src_layout), attend)

    def _encode(self, src: Tensor, layout: Padded | Packed, attend: AttentionFn) -> Tensor:
        if self.encoder is None:
            raise InputError("kind = 'decoder' has no encoder: encode needs an 'encoder-decoder' or 'encoder'")
        return self.encoder(self.vocabulary.embed_source(src), AttentionPattern.between(layout, layout), attend)

    @torch.no_grad()
    def start(
        self,
        src: Int[Tensor, "*sources"] | None = None,
        src_layout: OptionalLayout = None,
        *,
        rows: int | None = None,
        attend: AttentionFn = fused_attention,
    ) -> KVCache:
        """Encode the source and return the KV cache before the first step. rows: the batch size, if decoder-only."""
        decoder = self._require_decoder()
        past = decoder.empty_cache()
        if self.encoder is None:
            self._reject(src=src)
            if rows is None or rows < 1:
                raise InputError(f"kind = 'decoder' needs rows, the batch size, of at least 1, found rows = {rows}")
            return KVCache(1, torch.ones(rows, 0, dtype=torch.bool, device=self.device), past)
        self._reject(rows=rows)
        src = self._require("src", src)
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
        """Logits after each of the next T tokens of every row, and the KV cache with these tokens appended.

        Rows may differ in length: `pad_id` is skipped.
        """
        decoder = self._require_decoder()
        if self.encoder is None:
            self._reject(cross_mask=cross_mask)
        check_ids("ids", ids, self.config.vocab_size, ("rows", "tokens"))
        token_mask = ids != self.config.pad_id
        earlier, cache = cache.lengths(), cache.advance(token_mask)
        new = Padded.from_mask(token_mask, earlier)
        pattern, cross_pattern = cache.self_pattern(new), cache.cross_pattern(new, cross_mask)
        hidden = decoder(self.vocabulary.embed_target(ids), pattern, attend, cache.past, cache.memory, cross_pattern)
        return self.vocabulary.logits(hidden), cache

    def attention_stacks(self) -> tuple[Encoder | None, Decoder | None]:
        """Encoder and decoder, for code that relies on their structure; raises for models that are for comparison."""
        if (setting := self.config.comparison_only) is not None:
            raise InputError(f"this does not support models with {setting}, which exist for comparison")
        return cast("Encoder | None", self.encoder), cast("Decoder | None", self.decoder)

    def _require_decoder(self) -> Decoder | RivalDecoder:
        if self.decoder is None:
            raise InputError("kind = 'encoder' has no decoder: start and step need an 'encoder-decoder' or 'decoder'")
        return self.decoder

    def _source_layout(self, src: Tensor, layout: OptionalLayout) -> Padded | Packed:
        return _layout("src", src, self.config.source_vocab_size or self.config.vocab_size, layout, self.config.pad_id)

    def _target_layout(self, tgt_in: Tensor, layout: OptionalLayout) -> Padded | Packed:
        return _layout("tgt_in", tgt_in, self.config.vocab_size, layout, self.config.pad_id)

    def _require(self, name: str, value: Tensor | None) -> Tensor:
        if value is None:
            raise InputError(f"kind = {self.config.kind!r} needs {name}, which was not given")
        return value

    def _reject(self, **arguments: object) -> None:
        for name, value in arguments.items():
            if value is not None:
                raise InputError(f"kind = {self.config.kind!r} takes no {name}, which was given")


def _layout(name: str, ids: Tensor, vocab_size: int, layout: OptionalLayout, pad_id: int) -> Padded | Packed:
    if layout is None:
        check_ids(name, ids, vocab_size, ("sentences", "tokens"))
        return Padded.from_ids(ids, pad_id)
    check_ids(name, ids, vocab_size, ("sentences", "tokens") if isinstance(layout, Padded) else ("tokens",))
    check_layout(name, ids, layout)
    return layout


class _NoNormalInit(TorchFunctionMode):
    """Skips `nn.init.normal_`, which on the meta device imports torch._dynamo: almost as slow as importing torch."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        return kwargs["tensor"] if func is nn.init.normal_ else func(*args, **kwargs)


def meta_model(config: ModelConfig) -> Transformer:
    """A model on the meta device: weights without memory or values, and no use of torch's random state."""
    with torch.device("meta"), _NoNormalInit():
        return Transformer(config)


def copy_sharing_weights(model: Transformer) -> Transformer:
    """A copy of a model with its own modules and shared weights: hooks and replaced modules affect the copy only."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def replace_modules(model: nn.Module, kind: type[Module], make: Callable[[Module], nn.Module]) -> None:
    """Replace every submodule of type `kind` by `make(submodule)`, in the same training or evaluation mode."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, kind):
                setattr(parent, name, make(child).train(child.training))
