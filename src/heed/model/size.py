"""The number of parameters of each part of a model, computed from its settings alone.

Enters: a `ModelConfig`. Leaves: one `ParameterCount` per part. A test evaluates each formula and compares the total
with a real model. Imports no torch.
"""

from dataclasses import dataclass

from heed.config import ModelConfig

_GATES = {"lstm": 4, "gru": 3}  # of a recurrent cell


@dataclass(frozen=True)
class ParameterCount:
    """The parameters of one part of the model, such as all encoder self-attentions."""

    name: str
    copies: int  # how often the part occurs, such as once per layer
    formula: str  # of one copy, written out with its numbers
    per_copy: int  # the value of the formula

    @property
    def total(self) -> int:
        return self.copies * self.per_copy


def parameter_counts(config: ModelConfig) -> list[ParameterCount]:
    """The parameters of every part of the model, from the embeddings to the output."""
    return [
        part
        for part in _embeddings(config) + _encoder(config) + _decoder(config) + _classifier_head(config)
        if part.per_copy and part.copies
    ]


def _embeddings(config: ModelConfig) -> list[ParameterCount]:
    d, v = config.d_model, config.vocab_size
    sides = config.has_encoder + config.has_decoder
    source = 0 if config.shares_embedding else config.source_vocab_size or v
    learned = sides if config.positions == "learned" and config.mixer not in _GATES else 0
    return [
        ParameterCount("token embedding, target" if source else "token embedding", 1, f"{v} × {d}", v * d),
        ParameterCount("token embedding, source", 1, f"{source} × {d}", source * d),
        ParameterCount("output", int(not config.tie_embeddings), f"{d} × {v} + {v}", d * v + v),
        ParameterCount("output bias", int(config.tie_embeddings and config.output_bias), f"{v}", v),
        ParameterCount("learned positions", learned, f"{config.max_length} × {d}", config.max_length * d),
    ]


def _encoder(config: ModelConfig) -> list[ParameterCount]:
    layers = config.encoder_layers if config.has_encoder else 0
    if config.mixer != "attention":
        return [
            _mixer("encoder", layers, config, directions=2),
            _norms("encoder norms", layers, 1, config),
            _final_norm("encoder final norm", layers, config),
        ]
    return [
        _attention("encoder self-attention", layers, config),
        _feed_forward("encoder feed-forward", layers, config),
        _norms("encoder norms", layers, 1 + (config.without != "feed-forward"), config),
        _final_norm("encoder final norm", layers, config),
    ]


def _decoder(config: ModelConfig) -> list[ParameterCount]:
    layers = config.decoder_layers if config.has_decoder else 0
    cross_attentions = layers if config.has_encoder else 0
    if config.mixer != "attention":
        return [
            _mixer("decoder", layers, config, directions=1),
            _source_context(layers, config),
            _norms("decoder norms", layers, 2, config),
            _final_norm("decoder final norm", layers, config),
        ]
    return [
        _attention("decoder self-attention", layers, config),
        _attention("cross-attention", cross_attentions, config),
        _feed_forward("decoder feed-forward", layers, config),
        _norms("decoder norms", layers, 1 + bool(cross_attentions) + (config.without != "feed-forward"), config),
        _final_norm("decoder final norm", layers, config),
    ]


def _classifier_head(config: ModelConfig) -> list[ParameterCount]:
    labels, d = config.labels or 0, config.d_model
    return [ParameterCount("classifier head", int(labels > 0), f"{d} × {labels} + {labels}", d * labels + labels)]


def _attention(name: str, copies: int, config: ModelConfig) -> ParameterCount:
    d, keys = config.d_model, config.heads * config.key_width
    if keys == d:
        return ParameterCount(name, copies, f"4 × ({d} × {d} + {d})", 4 * (d * d + d))
    formula = f"2 × ({d} × {keys} + {keys}) + 2 × ({d} × {d} + {d})"
    return ParameterCount(name, copies, formula, 2 * (d * keys + keys) + 2 * (d * d + d))


def _mixer(side: str, copies: int, config: ModelConfig, *, directions: int) -> ParameterCount:
    """A recurrence, in so many directions, or a gated convolution."""
    d, name = config.d_model, f"{side} {config.mixer}"
    if config.mixer == "convolution":
        k = config.kernel_size
        return ParameterCount(name, copies, f"2 × {d} × ({k} × {d} + 1)", 2 * d * (k * d + 1))
    gates, width = _GATES[config.mixer], d // directions
    formula = f"{directions} × {gates} × {width} × ({d} + {width} + 2)"
    return ParameterCount(name, copies, formula, directions * gates * width * (d + width + 2))


def _source_context(copies: int, config: ModelConfig) -> ParameterCount:
    d = config.d_model
    if config.source_context == "attention":
        return _attention("cross-attention", copies, config)
    return ParameterCount("fixed vector", copies, f"2 × {d} × {d} + {d}", 2 * d * d + d)


def _feed_forward(name: str, copies: int, config: ModelConfig) -> ParameterCount:
    copies = 0 if config.without == "feed-forward" else copies
    d, f = config.d_model, config.d_ff
    if config.activation == "swiglu" and config.without != "activation":
        return ParameterCount(name, copies, f"2 × ({d} × {f} + {f}) + {f} × {d} + {d}", 2 * (d * f + f) + f * d + d)
    return ParameterCount(name, copies, f"{d} × {f} + {f} + {f} × {d} + {d}", d * f + f + f * d + d)


def _norms(name: str, layers: int, sublayers: int, config: ModelConfig) -> ParameterCount:
    norms = sublayers * (2 if config.norm == "sandwich" else 1)
    return ParameterCount(name, layers, f"{norms} × 2 × {config.d_model}", norms * 2 * config.d_model)


def _final_norm(name: str, layers: int, config: ModelConfig) -> ParameterCount:
    copies = int(layers > 0 and config.norm != "post")
    return ParameterCount(name, copies, f"2 × {config.d_model}", 2 * config.d_model)
