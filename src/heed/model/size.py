"""The number of parameters of a model, part by part, from its settings alone.

Enters: a `ModelConfig`. Leaves: parts with their counts. `Part.sum_shown` is the sum as written by hand; a test
evaluates it and compares it with a real model. Imports no torch.
"""

from dataclasses import dataclass

from heed.config import ModelConfig


@dataclass(frozen=True)
class Part:
    """One kind of part, how often it occurs and the sum of the numbers in one of them."""

    name: str
    times: int
    sum_shown: str
    each: int

    @property
    def total(self) -> int:
        """The parameters in all parts of this kind."""
        return self.times * self.each


def parameters(config: ModelConfig) -> list[Part]:
    """Every part of the model, in the order a token meets them."""
    return [
        part
        for part in _words(config) + _encoder(config) + _decoder(config) + _classes(config)
        if part.each and part.times
    ]


def _words(config: ModelConfig) -> list[Part]:
    d, v = config.d_model, config.vocab_size
    sides = config.has_encoder + config.has_decoder
    source = 0 if config.shares_embedding else config.source_vocab_size or v
    learned = sides if config.positions == "learned" else 0
    return [
        Part("word embedding, target" if source else "word embedding", 1, f"{v} × {d}", v * d),
        Part("word embedding, source", 1, f"{source} × {d}", source * d),
        Part("output", int(not config.tie_embeddings), f"{d} × {v} + {v}", d * v + v),
        Part("output bias", int(config.tie_embeddings and config.output_bias), f"{v}", v),
        Part("learned positions", learned, f"{config.max_length} × {d}", config.max_length * d),
    ]


def _encoder(config: ModelConfig) -> list[Part]:
    layers = config.encoder_layers if config.has_encoder else 0
    return [
        _attention("encoder self-attention", layers, config),
        _feed_forward("encoder feed-forward", layers, config),
        _norms("encoder norms", layers, 2, config),
        _last_norm("encoder last norm", layers, config),
    ]


def _decoder(config: ModelConfig) -> list[Part]:
    layers = config.decoder_layers if config.has_decoder else 0
    across = layers if config.has_encoder else 0
    return [
        _attention("decoder self-attention", layers, config),
        _attention("encoder-decoder attention", across, config),
        _feed_forward("decoder feed-forward", layers, config),
        _norms("decoder norms", layers, 3 if across else 2, config),
        _last_norm("decoder last norm", layers, config),
    ]


def _classes(config: ModelConfig) -> list[Part]:
    labels, d = config.labels or 0, config.d_model
    return [Part("classes", int(labels > 0), f"{d} × {labels} + {labels}", d * labels + labels)]


def _attention(name: str, times: int, config: ModelConfig) -> Part:
    d = config.d_model
    return Part(name, times, f"4 × ({d} × {d} + {d})", 4 * (d * d + d))


def _feed_forward(name: str, times: int, config: ModelConfig) -> Part:
    d, f = config.d_model, config.d_ff
    if config.activation == "swiglu":
        return Part(name, times, f"2 × ({d} × {f} + {f}) + {f} × {d} + {d}", 2 * (d * f + f) + f * d + d)
    return Part(name, times, f"{d} × {f} + {f} + {f} × {d} + {d}", d * f + f + f * d + d)


def _norms(name: str, layers: int, sublayers: int, config: ModelConfig) -> Part:
    norms = sublayers * (2 if config.norm == "sandwich" else 1)
    return Part(name, layers, f"{norms} × 2 × {config.d_model}", norms * 2 * config.d_model)


def _last_norm(name: str, layers: int, config: ModelConfig) -> Part:
    times = int(layers > 0 and config.norm != "post")
    return Part(name, times, f"2 × {config.d_model}", 2 * config.d_model)
