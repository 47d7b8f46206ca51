"""The named parts of a forward pass, from token ids to logits: what each tensor is, and its axes.

A name is a path: side, layer, sub-layer, part; `decoder.3.cross.weights` are the cross-attention weights of the third
decoder layer. Layers count from 1, as in the paper. The tables below hold every part, in the order of computation:

    encoder.embedding  .positions  .sum  .angles          BEFORE    the first layer
    encoder.1.self.…                                      NORM_FIRST, ATTENTION, RESIDUAL
    encoder.1.feed_forward.…                              NORM_FIRST, FEED_FORWARD, RESIDUAL
    encoder.output                                        AFTER     the last layer
    decoder.…                                             as the encoder, with decoder.1.cross.… before feed_forward
    logits  probabilities                                 END; of a classifier mean, logits, probabilities: CLASSES

In the meanings, x enters the sub-layer and c is what it attends to: x itself, or the encoder's output in `cross`. Axes
are the shape letters used everywhere; N counts labels; R and C stand for S or T: R queries, C keys. Knows nothing of
text or of models, only of their settings.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from heed.config import ModelConfig


class Row(NamedTuple):
    """One part, in every layer that has it; only: the settings with which a model has it."""

    name: str
    axes: str
    meaning: str
    only: tuple[str, ...] = ()


BEFORE = (
    Row("embedding", "R D", "each token's row of the embedding matrix, times √d_model"),
    Row("positions", "R D", "PE[pos, 2i] = sin(pos / 10000^(2i/d)), PE[pos, 2i+1] = cos(the same)", ("sinusoidal",)),
    Row("positions", "R D", "the learned embedding of each token's position", ("learned",)),
    Row("sum", "R D", "embedding + positions: what enters the first layer", ("sinusoidal", "learned")),
    Row("angles", "R K/2", "by how much each pair of a query or key is rotated; nothing is added", ("rotary",)),
)
NORM_FIRST = (Row("norm", "R D", "layer norm of what came before: x", ("pre", "sandwich")),)
ATTENTION = (
    Row("query", "H R K", "Q = x W_Q + b_Q, each head its share"),
    Row("key", "H C K", "K = c W_K + b_K, each head its share"),
    Row("value", "H C K", "V = c W_V + b_V, each head its share"),
    Row("turned_query", "H R K", "Q rotated by the angles of each token's position", ("rotary",)),  # not in `cross`
    Row("turned_key", "H C K", "K rotated by the angles of each token's position", ("rotary",)),  # not in `cross`
    Row("scores", "H R C", "Q Kᵀ, of the rotated ones where there are any"),
    Row("scaled", "H R C", "scores / √d_k"),
    Row("mask", "R C", "true where a query may attend to a key"),
    Row("weights", "H R C", "softmax of scaled, over the keys that are not masked"),
    Row("heads", "H R K", "weights V"),
    Row("concat", "R D", "the heads concatenated"),
    Row("output", "R D", "concat W_O + b_O"),
)
FEED_FORWARD = (
    Row("gate", "R F", "x W_g + b_g", ("swiglu",)),
    Row("wide", "R F", "x W₁ + b₁"),
    Row("hidden", "R F", "max(0, wide)", ("relu",)),
    Row("hidden", "R F", "GELU(wide)", ("gelu",)),
    Row("hidden", "R F", "swish(wide) = wide / (1 + e^-wide)", ("swish",)),
    Row("hidden", "R F", "swish(gate) ⊙ wide", ("swiglu",)),
    Row("output", "R D", "hidden W₂ + b₂"),
)
RESIDUAL = (
    Row("outer_norm", "R D", "layer norm of output", ("sandwich",)),
    Row("residual", "R D", "x + output", ("post",)),
    Row("residual", "R D", "what came before + output: what leaves", ("pre",)),
    Row("residual", "R D", "what came before + outer_norm: what leaves", ("sandwich",)),
    Row("norm", "R D", "layer norm of residual: what leaves", ("post",)),
)
AFTER = (
    Row("output", "R D", "what leaves the last layer", ("post",)),
    Row("output", "R D", "layer norm of what leaves the last layer", ("pre", "sandwich")),
)
END = (
    Row(
        "logits",
        "R V",
        "output Eᵀ, a score for every token; E is the embedding matrix, or one of its own, and may have a bias",
    ),
    Row("probabilities", "R V", "softmax of logits"),
)
CLASSES = (
    Row("mean", "1 D", "the mean of output over all tokens: the text's embedding"),
    Row("logits", "1 N", "mean W + b, a score for every label"),
    Row("probabilities", "1 N", "softmax of logits"),
)


@dataclass(frozen=True)
class Part:
    """One part of the forward pass over one text, or one text and its translation."""

    name: str
    axes: tuple[str, ...]  # shape letters
    meaning: str

    def shape(self, sizes: dict[str, int]) -> tuple[int, ...]:
        """The length of each axis."""
        return tuple(sizes[axis] for axis in self.axes)

    def bytes(self, sizes: dict[str, int]) -> int:
        """Its size in memory: float32, but bool for a mask."""
        return prod(self.shape(sizes)) * (1 if self.name.endswith(".mask") else 4)


def sizes(config: ModelConfig, source: int, target: int) -> dict[str, int]:
    """The length of every axis for sentences of so many tokens."""
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


def parts(config: ModelConfig) -> dict[str, Part]:
    """Every part that a model of these settings has, by name, in the order of computation."""
    return {part.name: part for part in _parts(config)}


def attentions(config: ModelConfig) -> list[str]:
    """The path of every attention sub-layer, in the order of computation."""
    return [name.removesuffix(".weights") for name in parts(config) if name.endswith(".weights")]


def _parts(config: ModelConfig) -> Iterator[Part]:
    if config.has_encoder:
        yield from _stack("encoder", config.encoder_layers, "S", config)
    if config.has_decoder:
        yield from _stack("decoder", config.decoder_layers, "T", config)
    yield from _rows("", END if config.labels is None else CLASSES, "T" if config.has_decoder else "S", config)


def _stack(side: str, layers: int, own: str, config: ModelConfig) -> Iterator[Part]:
    yield from _rows(f"{side}.", BEFORE, own, config)
    for layer in (f"{side}.{number}" for number in range(1, layers + 1)):
        yield from _rows(f"{layer}.self.", NORM_FIRST + ATTENTION + RESIDUAL, own, config, own)
        if side == "decoder" and config.has_encoder:
            unturned = tuple(row for row in ATTENTION if row.only != ("rotary",))
            yield from _rows(f"{layer}.cross.", NORM_FIRST + unturned + RESIDUAL, own, config, "S")
        yield from _rows(f"{layer}.feed_forward.", NORM_FIRST + FEED_FORWARD + RESIDUAL, own, config)
    yield from _rows(f"{side}.", AFTER, own, config)


def _rows(path: str, rows: tuple[Row, ...], own: str, config: ModelConfig, other: str = "") -> Iterator[Part]:
    """The rows of a table that a model of these settings has, with S or T in place of R and C."""
    settings = {config.norm, config.positions, config.activation}
    for name, axes, meaning, only in rows:
        if not only or settings & set(only):
            yield Part(path + name, tuple(axes.replace("R", own).replace("C", other).split()), meaning)
