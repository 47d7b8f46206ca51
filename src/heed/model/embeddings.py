"""Token embeddings and the output projection, one matrix when tied (paper, section 3.4), and the classifier head.

Enters: token ids, or hidden states. Leaves: embeddings times √d_model, or logits over the vocabulary or the labels.
Knows nothing of text.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from heed.config import ModelConfig
from heed.errors import InputError
from heed.model.layout import Layout, Packed, Padded


def check_ids(name: str, ids: Tensor, vocab_size: int, shape: tuple[str, ...]) -> None:
    """Check that ids are int64, have the dimensions named in `shape`, are not empty and are in the vocabulary."""
    if ids.dtype != torch.int64:
        raise InputError(f"{name} holds token ids and must be int64, found {ids.dtype}")
    if ids.ndim != len(shape) or ids.numel() == 0:
        raise InputError(f"{name} must have shape ({', '.join(shape)}) with no size of zero, found {tuple(ids.shape)}")
    # Compiled or captured code cannot read values: there the caller must pass valid ids.
    if not torch.compiler.is_compiling() and not (ids.is_cuda and torch.cuda.is_current_stream_capturing()):
        smallest, largest = (int(bound) for bound in ids.aminmax())
        if smallest < 0 or largest >= vocab_size:
            invalid = smallest if smallest < 0 else largest
            raise InputError(f"{name} holds id {invalid}, outside a vocabulary of {vocab_size} tokens")


def check_layout(name: str, ids: Tensor, layout: Layout) -> None:
    """Check that a layout has the shape of the ids it was given with."""
    if ids.shape != layout.positions.shape:
        expected = tuple(layout.positions.shape)
        raise InputError(f"{name} has shape {tuple(ids.shape)}, but its layout is for tokens of shape {expected}")


class Embeddings(nn.Module):
    """The source and target embeddings and the output projection, as `Transformer.vocabulary`.

    tied, one vocabulary     one matrix for all three; an output bias if `config.output_bias`
    tied, two vocabularies   one matrix for target and output, another for the source
    not tied                 three matrices, and an output bias
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.scale = math.sqrt(config.d_model)
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.source_embedding = (
            None
            if config.shares_embedding
            else nn.Embedding(config.source_vocab_size or config.vocab_size, config.d_model)
        )
        self.output = None if config.tie_embeddings else nn.Linear(config.d_model, config.vocab_size)
        has_bias = config.tie_embeddings and config.output_bias
        self.bias = nn.Parameter(torch.zeros(config.vocab_size)) if has_bias else None

    def embed_source(self, ids: Int[Tensor, "*tokens"]) -> Float[Tensor, "*tokens D"]:
        """The embeddings of source tokens, times √d_model."""
        embedding = self.embedding if self.source_embedding is None else self.source_embedding
        return embedding(ids) * self.scale

    def embed_target(self, ids: Int[Tensor, "*tokens"]) -> Float[Tensor, "*tokens D"]:
        """The embeddings of target tokens, times √d_model."""
        return self.embedding(ids) * self.scale

    def logits(self, x: Float[Tensor, "*tokens D"]) -> Float[Tensor, "*tokens V"]:
        return functional.linear(x, *self.output_projection())

    def output_projection(self) -> tuple[Float[Tensor, "V D"], Float[Tensor, "V"] | None]:
        """The weight and bias of the output projection; tied, the weight is the target embedding."""
        return (self.embedding.weight, self.bias) if self.output is None else (self.output.weight, self.output.bias)


class ClassifierHead(nn.Module):
    """Mean pooling over a text's hidden states, then a linear layer to logits over the labels."""

    def __init__(self, config: ModelConfig, labels: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.d_model, labels)

    def forward(self, hidden: Float[Tensor, "*tokens D"], layout: Padded | Packed) -> Float[Tensor, "B labels"]:
        return self.output(self.dropout(layout.mean(hidden)))
