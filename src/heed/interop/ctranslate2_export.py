"""Exports a model to CTranslate2's format through CTranslate2's own model specification.

Enters: a Transformer and its tokenizers. Leaves: the files of a folder that `ctranslate2.Translator` opens. Every norm,
activation and positional encoding is supported; the paper's interleaved sinusoids, which CTranslate2 would lay out in
two halves, are exported as a table of `POSITIONS` rows. Encoder-only and decoder-only models are rejected.
"""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch
from ctranslate2.specs import TransformerSpec
from ctranslate2.specs.common_spec import Activation
from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec
from tokenizers import Tokenizer as Backend
from torch import Tensor, nn

from heed.config import ModelConfig
from heed.errors import ConfigError
from heed.model.attention import MultiHeadAttention
from heed.model.layers import Decoder, DecoderLayer, Encoder, EncoderLayer, FeedForward, Residual
from heed.model.positions import sinusoids
from heed.model.transformer import Transformer
from heed.text.tokenizer import Tokenizer, TokenizerPair

POSITIONS = 2048  # rows of the table of sinusoids: the maximum length of an exported model
_ACTIVATIONS = {
    "relu": Activation.RELU,
    "gelu": Activation.GELU,
    "swish": Activation.SWISH,
    "swiglu": Activation.SWISH,
}


def ctranslate2_files(model: Transformer, tokenizers: TokenizerPair, quantization: str = "float32") -> dict[str, bytes]:
    """The files of the exported model, by name. quantization: CTranslate2's weight type, such as int8."""
    spec = _specification(model)
    config = model.config
    source, target = vocabularies(config, tokenizers)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.unk_token = target[config.pad_id]  # required by CTranslate2, although no token is unknown
    spec.config.bos_token = spec.config.decoder_start_token = target[config.bos_id]
    spec.config.eos_token = target[config.eos_id]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = config.norm_eps
    spec.validate()
    spec.optimize(quantization)
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


def vocabularies(config: ModelConfig, tokenizers: TokenizerPair) -> tuple[list[str], list[str]]:
    """The token strings of the source and target vocabularies, in the order of ids."""
    source, target = tokenizers
    return _names(source, config.source_vocab_size or config.vocab_size), _names(target, config.vocab_size)


def _names(tokenizer: Tokenizer, size: int) -> list[str]:
    names = {number: name for name, number in Backend.from_str(tokenizer.to_json()).get_vocab().items()}
    return [names.get(number, f"⟨{number}⟩") for number in range(size)]


def _specification(model: Transformer) -> Any:
    config = model.config
    encoder_stack, decoder_stack = model.attention_stacks()
    if encoder_stack is None or decoder_stack is None:
        raise ConfigError(
            f"kind = {config.kind!r} cannot be exported to ctranslate2: only an 'encoder-decoder' translates"
        )
    settings: dict[str, Any] = {
        "num_heads": config.heads,
        "pre_norm": config.norm != "post",
        "pre_post_layer_norm": config.norm == "sandwich",
        "activation": _ACTIVATIONS[config.activation],
        "ffn_glu": config.activation == "swiglu",
        "rotary_dim": config.head_width if config.positions == "rotary" else None,
    }
    encoder = TransformerEncoderSpec(config.encoder_layers, **settings)
    decoder = TransformerDecoderSpec(
        config.decoder_layers,
        external_pre_post_encoder_layers=config.norm == "sandwich",
        alignment_layer=max(0, config.decoder_layers - 2),  # as `heed.decoding.forced_decoding`
        alignment_heads=config.heads,
        **settings,
    )
    embeddings = model.vocabulary
    encoder.embeddings[0].weight = _copy((embeddings.source_embedding or embeddings.embedding).weight)
    decoder.embeddings.weight = _copy(embeddings.embedding.weight)
    if embeddings.output is not None:
        _linear(decoder.projection, embeddings.output)
    else:
        decoder.projection.weight = _copy(embeddings.embedding.weight)
        if embeddings.bias is not None:
            decoder.projection.bias = _copy(embeddings.bias)
    _stack(encoder, encoder_stack, config)
    _stack(decoder, decoder_stack, config)
    return TransformerSpec(encoder, decoder)


def _stack(spec: Any, stack: Encoder | Decoder, config: ModelConfig) -> None:
    if config.positions == "sinusoidal":
        spec.position_encodings.encodings = sinusoids(torch.arange(POSITIONS), config.d_model).float()
    elif stack.positions.table is not None:
        spec.position_encodings.encodings = _copy(stack.positions.table.weight)
    if config.norm != "post":
        _norm(spec.layer_norm, cast("nn.LayerNorm", stack.norm))
    for layer_spec, layer in zip(spec.layer, cast("Iterable[EncoderLayer | DecoderLayer]", stack.layers), strict=True):
        _attention(layer_spec.self_attention, layer.attention)
        _feed_forward(layer_spec.ffn, layer.feed_forward)
        if config.norm == "sandwich":
            _around(layer_spec.input_layer_norm, layer_spec.post_attention_layer_norm, layer.around_attention)
            _around(
                layer_spec.pre_feedforward_layer_norm, layer_spec.post_feedforward_layer_norm, layer.around_feed_forward
            )
        else:
            _norm(layer_spec.self_attention.layer_norm, layer.around_attention.norm)
            _norm(layer_spec.ffn.layer_norm, layer.around_feed_forward.norm)
        if isinstance(layer, DecoderLayer):
            _cross_attention(layer_spec, layer)


def _cross_attention(layer_spec: Any, layer: DecoderLayer) -> None:
    attention, around = layer.cross_attention, layer.around_cross_attention
    if attention is None or around is None:  # decoder-only models have been rejected
        return
    _linear(layer_spec.attention.linear[0], attention.query)
    _linear(layer_spec.attention.linear[1], attention.key, attention.value)
    _linear(layer_spec.attention.linear[2], attention.output)
    if around.outer_norm is None:
        _norm(layer_spec.attention.layer_norm, around.norm)
    else:
        before, after = "external_pre_encoder_attention_layer_norm", "external_post_encoder_attention_layer_norm"
        _around(getattr(layer_spec, before), getattr(layer_spec, after), around)


def _attention(spec: Any, attention: MultiHeadAttention) -> None:
    _linear(spec.linear[0], attention.query, attention.key, attention.value)
    _linear(spec.linear[1], attention.output)


def _feed_forward(spec: Any, network: FeedForward) -> None:
    if network.gate is None:
        _linear(spec.linear_0, network.widen)
    else:
        _linear(spec.linear_0, network.gate)
        _linear(spec.linear_0_noact, network.widen)
    _linear(spec.linear_1, network.narrow)


def _around(before: Any, after: Any, around: Residual) -> None:
    _norm(before, around.norm)
    _norm(after, cast("nn.LayerNorm", around.outer_norm))


def _linear(spec: Any, *layers: nn.Linear) -> None:
    """Concatenate linear layers to one, as in CTranslate2's fused QKV."""
    spec.weight = torch.cat([_copy(layer.weight) for layer in layers])
    spec.bias = torch.cat([_copy(layer.bias) for layer in layers])


def _norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = _copy(norm.weight), _copy(norm.bias)


def _copy(weight: Tensor) -> Tensor:
    """A copy, because CTranslate2 quantises in spec."""
    return weight.detach().cpu().clone()
