"""How much there is to do: the operations of matrix products, from a model's settings and the number of tokens alone.

A product with a matrix of n numbers takes 2 n operations a token, learning three times as many: forward, and back to
weights and inputs. Products between tokens, attention's own, are not counted: for sentences of 30 tokens they are less
than one in a hundred.
"""

from dataclasses import dataclass

from heed.config import ModelConfig


@dataclass(frozen=True)
class Weights:
    """Numbers in the matrices of an encoder and decoder that a token meets."""

    source: int  # once for each source token: the encoder, and keys and values for the decoder
    target: int  # once for each target token: the rest of the decoder, and the words

    @classmethod
    def of(cls, config: ModelConfig) -> "Weights":
        """Of a model with these settings."""
        d, inner = config.d_model, (3 if config.activation == "swiglu" else 2) * config.d_model * config.d_ff
        source = config.encoder_layers * (4 * d * d + inner) + config.decoder_layers * 2 * d * d
        return cls(source, config.decoder_layers * (6 * d * d + inner) + d * config.vocab_size)


def training_operations(config: ModelConfig, sources: float, targets: float) -> float:
    """Of learning from so many source and target tokens."""
    weights = Weights.of(config)
    return 6 * (weights.source * sources + weights.target * targets)


@dataclass(frozen=True)
class Search:
    """A search as a machine sees it: sentences at once, hypotheses each; tokens read and written a sentence."""

    batch: int
    beam: int
    sources: float
    targets: float

    def operations(self, config: ModelConfig) -> float:
        """Of all its products."""
        weights = Weights.of(config)
        return 2 * self.batch * (weights.source * self.sources + weights.target * self.beam * self.targets)

    def numbers_read(self, config: ModelConfig) -> float:
        """Weights read from memory: the encoder's once, the decoder's at every step, for however many sentences."""
        weights = Weights.of(config)
        return weights.source + weights.target * self.targets

    def least_seconds(self, config: ModelConfig, operations: float, bytes_read: float, bytes_each: int) -> float:
        """What no machine that does and reads so many a second goes below, unless it has the weights in a cache."""
        return max(self.operations(config) / operations, self.numbers_read(config) * bytes_each / bytes_read)
