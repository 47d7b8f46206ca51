"""Small models of every kind, and sentences of unequal length to try them on."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from heed import ModelConfig, Transformer
from heed.model.layout import Packed

VOCAB = 13
FIRST_WORD = 3  # after padding, beginning and end

SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 16,
    "heads": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "d_ff": 24,
    "max_length": 32,
}

COMBINATIONS = [
    ModelConfig.model_validate({**SHAPE, "kind": kind, "norm": norm, "positions": positions, "activation": activation})
    for kind, norm, positions, activation in product(
        ("encoder-decoder", "decoder", "encoder"),
        ("post", "pre", "sandwich"),
        ("sinusoidal", "learned", "rotary"),
        ("relu", "gelu", "swish", "swiglu"),
    )
] + [ModelConfig.model_validate({**SHAPE, "output_bias": True})]


def _name(config: ModelConfig) -> str:
    return f"{config.kind}-{config.norm}-{config.positions}-{config.activation}" + "-bias" * config.output_bias


every_combination = pytest.mark.parametrize("config", COMBINATIONS, ids=_name)
every_combination_that_decodes = pytest.mark.parametrize(
    "config", [config for config in COMBINATIONS if config.has_decoder], ids=_name
)


def make(config: ModelConfig, device: torch.device, dtype: torch.dtype = torch.float64) -> Transformer:
    """A model that does not drop out, whose biases and norms are as random as the rest of it."""
    model = Transformer(config).to(device, dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def sentences(lengths: list[int], device: torch.device) -> list[Tensor]:
    return [torch.randint(FIRST_WORD, VOCAB, (length,), device=device) for length in lengths]


def padded(rows: list[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def packed(rows: list[Tensor]) -> tuple[Tensor, Packed]:
    return torch.cat(rows), Packed.from_lengths([len(row) for row in rows]).to(rows[0].device)


def both_sides(config: ModelConfig, device: torch.device) -> dict[str, list[Tensor]]:
    """Sentences for the sides that a model of this kind has, by the name of the argument that takes them."""
    sides = {}
    if config.has_encoder:
        sides["src"] = sentences([5, 1, 7, 3], device)
    if config.has_decoder:
        sides["tgt_in"] = sentences([4, 6, 1, 5], device)
    return sides


def lengths_of_output(config: ModelConfig, sides: dict[str, list[Tensor]]) -> list[int]:
    return [len(row) for row in sides["tgt_in" if config.has_decoder else "src"]]
