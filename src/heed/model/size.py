"""The number of parameters of a model, part by part, from its settings alone.

Enters: a `ModelConfig`. Leaves: parts with their counts. `ParameterCount.formula` is the sum as written by hand; a test
evaluates it and compares it with a real model. Imports no torch.
"""

from dataclasses import dataclass

from heed.config import ModelConfig


@dataclass(frozen=True)
class ParameterCount:
    """One kind of part, how often it occurs and the sum of the numbers in one of them."""

    name: str
    copies: int
    formula: str
    per_copy: int

    @property
    def total(self) -> int:
        """The parameters in all parts of this kind."""
        return self.copies * self.per_copy


def parameter_counts(config: ModelConfig) -> list[ParameterCount]:
    """Every part of the model, in the order a token meets them."""
    return [
        part
        for part in _words(config) + _encoder(config) + _decoder(config) + _classes(config)
        if part.per_copy and part.copies
    ]


def _words(config: ModelConfig) -> list[ParameterCount]:
    d, v = config.d_model, config.vocab_size
    sides = config.has_encoder + config.has_decoder
    source = 0 if config.shares_embedding else config.source_vocab_size or v
    learned = sides if config.positions == "learned" else 0
    return [
        ParameterCount("word embedding, target" if source else "word embedding", 1, f"{v} × {d}", v * d),
        ParameterCount("word embedding, source", 1, f"{source} × {d}", source * d),
        ParameterCount("output", int(not config.tie_embeddings), f"{d} × {v} + {v}", d * v + v),
        ParameterCount("output bias", int(config.tie_embeddings and config.output_bias), f"{v}", v),
        ParameterCount("learned positions", learned, f"{config.max_length} × {d}", config.max_length * d),
    ]


def _encoder(config: ModelConfig) -> list[ParameterCount]:
    layers = config.encoder_layers if config.has_encoder else 0
    return [
        _attention("encoder self-attention", layers, config),
        _feed_forward("encoder feed-forward", layers, config),
        _norms("encoder norms", layers, 2, config),
        _last_norm("encoder last norm", layers, config),
    ]


def _decoder(config: ModelConfig) -> list[ParameterCount]:
    layers = config.decoder_layers if config.has_decoder else 0
    across = layers if config.has_encoder else 0
    return [
        _attention("decoder self-attention", layers, config),
        _attention("encoder-decoder attention", across, config),
        _feed_forward("decoder feed-forward", layers, config),
        _norms("decoder norms", layers, 3 if across else 2, config),
        _last_norm("decoder last norm", layers, config),
    ]


def _classes(config: ModelConfig) -> list[ParameterCount]:
    labels, d = config.labels or 0, config.d_model
    return [ParameterCount("classes", int(labels > 0), f"{d} × {labels} + {labels}", d * labels + labels)]


def _attention(name: str, copies: int, config: ModelConfig) -> ParameterCount:
    d = config.d_model
    return ParameterCount(name, copies, f"4 × ({d} × {d} + {d})", 4 * (d * d + d))


def _feed_forward(name: str, copies: int, config: ModelConfig) -> ParameterCount:
    d, f = config.d_model, config.d_ff
    if config.activation == "swiglu":
        return ParameterCount(name, copies, f"2 × ({d} × {f} + {f}) + {f} × {d} + {d}", 2 * (d * f + f) + f * d + d)
    return ParameterCount(name, copies, f"{d} × {f} + {f} + {f} × {d} + {d}", d * f + f + f * d + d)


def _norms(name: str, layers: int, sublayers: int, config: ModelConfig) -> ParameterCount:
    norms = sublayers * (2 if config.norm == "sandwich" else 1)
    return ParameterCount(name, layers, f"{norms} × 2 × {config.d_model}", norms * 2 * config.d_model)


def _last_norm(name: str, layers: int, config: ModelConfig) -> ParameterCount:
    copies = int(layers > 0 and config.norm != "post")
    return ParameterCount(name, copies, f"2 × {config.d_model}", 2 * config.d_model)
