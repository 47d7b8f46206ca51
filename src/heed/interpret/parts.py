"""The named activations (parts) of a forward pass, from token ids to logits: what each tensor is, and its axes.

A name is a path: side, layer, sub-layer, part; `decoder.3.cross.weights` are the cross-attention weights of the third
decoder layer. Layers count from 1, as in the paper. The tables below hold every part, in the order of computation:

    encoder.embedding  .positions  .sum  .angles          INPUT of the first layer
    encoder.1.self.…                                      PRE_NORM, ATTENTION, RESIDUAL
    encoder.1.feed_forward.…                              PRE_NORM, FEED_FORWARD, RESIDUAL
    encoder.output                                        STACK_OUTPUT
    decoder.…                                             as the encoder, with decoder.1.cross.… before feed_forward
    logits  probabilities                                 OUTPUT; of a classifier CLASSIFIER: also mean

In the meanings, x is the input of the sub-layer and c what it attends to: x itself, or the encoder's output in `cross`.
Axes are the shape letters used everywhere; N counts labels; R and C stand for S or T: R queries, C keys. Knows nothing
of text or of models, only of their settings.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from heed.config import ModelConfig


class PartTemplate(NamedTuple):
    """One part, in every layer that has it; only: the settings of the models that have it."""

    name: str
    axes: str
    meaning: str
    only: tuple[str, ...] = ()


INPUT = (
    PartTemplate("embedding", "R D", "each token's row of the embedding matrix, times √d_model"),
    PartTemplate("positions", "R D", "PE[pos, 2i] = sin(pos / 10000^(2i/d)), PE[pos, 2i+1] = cos(…)", ("sinusoidal",)),
    PartTemplate("positions", "R D", "the learned embedding of each position", ("learned",)),
    PartTemplate("sum", "R D", "embedding + positions: the input of the first layer", ("sinusoidal", "learned")),
    PartTemplate(
        "angles", "R K/2", "the angle by which each pair of a query or key is rotated; nothing is added", ("rotary",)
    ),
)
PRE_NORM = (PartTemplate("norm", "R D", "layer norm of the residual stream: x", ("pre", "sandwich")),)
ATTENTION = (
    PartTemplate("query", "H R K", "Q = x W_Q + b_Q, split into heads"),
    PartTemplate("key", "H C K", "K = c W_K + b_K, split into heads"),
    PartTemplate("value", "H C K", "V = c W_V + b_V, split into heads"),
    PartTemplate("turned_query", "H R K", "Q rotated by the angles of its position", ("rotary",)),  # not in `cross`
    PartTemplate("turned_key", "H C K", "K rotated by the angles of its position", ("rotary",)),  # not in `cross`
    PartTemplate("scores", "H R C", "Q Kᵀ; with rotary positions, of the rotated Q and K"),
    PartTemplate("scaled", "H R C", "scores / √d_k"),
    PartTemplate("mask", "R C", "true where a query may attend to a key"),
    PartTemplate("weights", "H R C", "softmax of scaled, over the keys that are not masked"),
    PartTemplate("heads", "H R K", "weights V"),
    PartTemplate("concat", "R D", "the heads concatenated"),
    PartTemplate("output", "R D", "concat W_O + b_O"),
)
FEED_FORWARD = (
    PartTemplate("gate", "R F", "x W_g + b_g", ("swiglu",)),
    PartTemplate("wide", "R F", "x W₁ + b₁"),
    PartTemplate("hidden", "R F", "max(0, wide)", ("relu",)),
    PartTemplate("hidden", "R F", "GELU(wide)", ("gelu",)),
    PartTemplate("hidden", "R F", "swish(wide) = wide / (1 + e^-wide)", ("swish",)),
    PartTemplate("hidden", "R F", "swish(gate) ⊙ wide", ("swiglu",)),
    PartTemplate("output", "R D", "hidden W₂ + b₂"),
)
RESIDUAL = (
    PartTemplate("outer_norm", "R D", "layer norm of output", ("sandwich",)),
    PartTemplate("residual", "R D", "x + output", ("post",)),
    PartTemplate("residual", "R D", "residual stream + output: the new residual stream", ("pre",)),
    PartTemplate("residual", "R D", "residual stream + outer_norm: the new residual stream", ("sandwich",)),
    PartTemplate("norm", "R D", "layer norm of residual: the output of the sub-layer", ("post",)),
)
STACK_OUTPUT = (
    PartTemplate("output", "R D", "the output of the last layer", ("post",)),
    PartTemplate("output", "R D", "layer norm of the output of the last layer", ("pre", "sandwich")),
)
OUTPUT = (
    PartTemplate(
        "logits",
        "R V",
        "output Eᵀ, a score for every vocabulary entry; E: the embedding matrix, or untied weights with a bias",
    ),
    PartTemplate("probabilities", "R V", "softmax of logits"),
)
CLASSIFIER = (
    PartTemplate("mean", "1 D", "output averaged over all tokens: the text's embedding"),
    PartTemplate("logits", "1 N", "mean W + b, a score for every label"),
    PartTemplate("probabilities", "1 N", "softmax of logits"),
)


@dataclass(frozen=True)
class PartSpec:
    """Name, axes and meaning of one part of the forward pass."""

    name: str
    axes: tuple[str, ...]  # shape letters
    meaning: str

    def shape(self, sizes: dict[str, int]) -> tuple[int, ...]:
        """The length of each axis."""
        return tuple(sizes[axis] for axis in self.axes)

    def bytes(self, sizes: dict[str, int]) -> int:
        """Size in memory: float32, but bool for a mask."""
        return prod(self.shape(sizes)) * (1 if self.name.endswith(".mask") else 4)


def sizes(config: ModelConfig, source: int, target: int) -> dict[str, int]:
    """The length of every axis; source, target: the numbers of tokens."""
    return {
        "S": source,
        "T": target,
        "D": config.d_model,
        "H": config.heads,
        "K": config.head_width,
        "K/2": config.head_width // 2,
        "F": config.d_ff,
        "V": config.vocab_size,
        "N": config.labels or 0,
        "1": 1,
    }


def parts(config: ModelConfig) -> dict[str, PartSpec]:
    """Every part that a model of these settings has, by name, in the order of computation."""
    return {part.name: part for part in _parts(config)}


def attentions(config: ModelConfig) -> list[str]:
    """The path of every attention sub-layer, in the order of computation."""
    return [name.removesuffix(".weights") for name in parts(config) if name.endswith(".weights")]


def _parts(config: ModelConfig) -> Iterator[PartSpec]:
    if config.has_encoder:
        yield from _stack("encoder", config.encoder_layers, "S", config)
    if config.has_decoder:
        yield from _stack("decoder", config.decoder_layers, "T", config)
    yield from _specs("", OUTPUT if config.labels is None else CLASSIFIER, "T" if config.has_decoder else "S", config)


def _stack(side: str, layers: int, queries: str, config: ModelConfig) -> Iterator[PartSpec]:
    yield from _specs(f"{side}.", INPUT, queries, config)
    for layer in (f"{side}.{number}" for number in range(1, layers + 1)):
        yield from _specs(f"{layer}.self.", PRE_NORM + ATTENTION + RESIDUAL, queries, config, queries)
        if side == "decoder" and config.has_encoder:
            without_rotation = tuple(part for part in ATTENTION if part.only != ("rotary",))
            yield from _specs(f"{layer}.cross.", PRE_NORM + without_rotation + RESIDUAL, queries, config, "S")
        yield from _specs(f"{layer}.feed_forward.", PRE_NORM + FEED_FORWARD + RESIDUAL, queries, config)
    yield from _specs(f"{side}.", STACK_OUTPUT, queries, config)


def _specs(
    path: str, templates: tuple[PartTemplate, ...], queries: str, config: ModelConfig, keys: str = ""
) -> Iterator[PartSpec]:
    """The parts of a table that a model of these settings has, with S or T for R (`queries`) and C (`keys`)."""
    settings = {config.norm, config.positions, config.activation}
    for name, axes, meaning, only in templates:
        if not only or settings & set(only):
            yield PartSpec(path + name, tuple(axes.replace("R", queries).replace("C", keys).split()), meaning)
