"""The name and shape of every weight of a model, computed from its settings alone.

Enters: a `ModelConfig`. Leaves: shapes by name, as in `Transformer(config).state_dict()`; a test compares them for
every architecture. Imports torch only for the rivals that exist for comparison (`config.mixer`).
"""

import re
from collections.abc import Iterator

from heed.config import ModelConfig

Shape = tuple[int, ...]
_LAYER = re.compile(r"(encoder|decoder)\.layers\.0\.")


def weight_shapes(config: ModelConfig) -> dict[str, Shape]:
    """The shape of every weight of a model."""
    stacks = {"encoder": config.encoder_layers, "decoder": config.decoder_layers}
    shapes = one_layer_shapes(config)
    layers = {name: stacks[match[1]] for name in shapes if (match := _LAYER.match(name))}
    return {
        name.replace(".layers.0.", f".layers.{number}.", 1): shape
        for name, shape in shapes.items()
        for number in range(layers.get(name, 1))
    }


def weight_count(config: ModelConfig) -> int:
    """The number of weights of a model, without listing them: settings may claim any number of layers."""
    stacks = {"encoder": config.encoder_layers, "decoder": config.decoder_layers}
    layers = (_LAYER.match(name) for name in one_layer_shapes(config))
    return sum(1 if match is None else stacks[match[1]] for match in layers)


def one_layer_shapes(config: ModelConfig) -> dict[str, Shape]:
    """The shape of every weight of a model with one encoder and one decoder layer."""
    if config.mixer != "attention":
        from heed.model.transformer import meta_model  # noqa: PLC0415 - torch takes seconds to import

        one_layer = meta_model(config.model_copy(update={"encoder_layers": 1, "decoder_layers": 1}))
        return {name: tuple(weight.shape) for name, weight in one_layer.state_dict().items()}
    return dict((*_vocabulary(config), *_stack(config, "encoder"), *_stack(config, "decoder"), *_classes(config)))


def _vocabulary(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    if config.tie_embeddings and config.output_bias:
        yield "vocabulary.bias", (config.vocab_size,)
    yield "vocabulary.embedding.weight", (config.vocab_size, config.d_model)
    if not config.shares_embedding:
        yield "vocabulary.source_embedding.weight", (config.source_vocab_size or config.vocab_size, config.d_model)
    if not config.tie_embeddings:
        yield from _linear("vocabulary.output", config.d_model, config.vocab_size)


def _stack(config: ModelConfig, side: str) -> Iterator[tuple[str, Shape]]:
    if not (config.has_encoder if side == "encoder" else config.has_decoder):
        return
    if config.positions == "learned":
        yield f"{side}.positions.table.weight", (config.max_length, config.d_model)
    layer = f"{side}.layers.0"
    attentions = ["attention", "cross_attention"] if side == "decoder" and config.has_encoder else ["attention"]
    for attention in attentions:
        for projection in ("query", "key", "value", "output"):
            width = config.heads * config.key_width if projection in ("query", "key") else config.d_model
            yield from _linear(f"{layer}.{attention}.{projection}", config.d_model, width)
        yield from _residual(f"{layer}.around_{attention}", config)
    if config.without != "feed-forward":
        is_gated = config.activation == "swiglu" and config.without != "activation"
        yield from _linear(f"{layer}.feed_forward.widen", config.d_model, config.d_ff)
        if is_gated:
            yield from _linear(f"{layer}.feed_forward.gate", config.d_model, config.d_ff)
        yield from _linear(f"{layer}.feed_forward.narrow", config.d_ff, config.d_model)
        yield from _residual(f"{layer}.around_feed_forward", config)
    if config.norm != "post":
        yield from _norm(f"{side}.norm", config)


def _residual(name: str, config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    yield from _norm(f"{name}.norm", config)
    if config.norm == "sandwich":
        yield from _norm(f"{name}.outer_norm", config)


def _norm(name: str, config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (config.d_model,)
    yield f"{name}.bias", (config.d_model,)


def _linear(name: str, inputs: int, outputs: int) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (outputs, inputs)
    yield f"{name}.bias", (outputs,)


def _classes(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    if config.labels is not None:
        yield from _linear("classes.output", config.d_model, config.labels)
