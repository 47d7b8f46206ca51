"""Small models of every kind, and batches of sentences of different lengths to run them on."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from heed import ModelConfig, Transformer
from heed.model.layout import Packed

VOCAB = 13
FIRST_WORD = 3  # the first id after padding, BOS and EOS

SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 16,
    "heads": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "d_ff": 24,
    "max_length": 32,
}

KINDS = ("encoder-decoder", "decoder", "encoder")
NORMS = ("post", "pre", "sandwich")
POSITIONS = ("sinusoidal", "learned", "rotary")
ACTIVATIONS = ("relu", "gelu", "swish", "swiglu")
RIVALS: list[dict[str, Any]] = [
    {"mixer": "lstm"},
    {"mixer": "lstm", "norm": "pre", "source_context": "vector"},
    {"mixer": "gru", "norm": "sandwich"},
    {"mixer": "gru", "source_context": "vector"},
    {"mixer": "convolution", "norm": "pre"},
    {"mixer": "convolution", "positions": "learned", "kernel_size": 5},
    {"positions": "index"},
    {"positions": "none", "norm": "pre"},
    {"without": "scaling", "positions": "rotary"},
    {"without": "residuals"},
    {"without": "feed-forward", "norm": "sandwich"},
    {"without": "activation", "norm": "pre"},
    {"d_k": 3},
]


def _configs(indices: Iterable[tuple[int, int, int, int]]) -> list[ModelConfig]:
    choices: Iterable[dict[str, Any]] = (
        {"kind": KINDS[i], "norm": NORMS[j], "positions": POSITIONS[k], "activation": ACTIVATIONS[a]}
        for i, j, k, a in indices
    )
    return [ModelConfig.model_validate({**SHAPE, **choice}) for choice in (*choices, {"output_bias": True})]


COMBINATIONS = _configs(product(range(3), range(3), range(3), range(4)))
# Every combination of kind, norm and positions, and each activation with each of these: enough where the activation,
# which treats every number on its own, cannot matter to the claim.
COVERING = _configs((i, j, k, (i + j + k) % 4) for i, j, k in product(range(3), repeat=3))


def _name(config: ModelConfig) -> str:
    if config.comparison_only:
        return f"{config.mixer}-{config.source_context}-{config.norm}-{config.positions}-{config.without}-{config.d_k}"
    return f"{config.kind}-{config.norm}-{config.positions}-{config.activation}" + "-bias" * config.output_bias


FOR_COMPARISON = [ModelConfig.model_validate({**SHAPE, **rival}) for rival in RIVALS]


def _decoders(configs: list[ModelConfig]) -> list[ModelConfig]:
    return [config for config in configs if config.has_decoder]


every_transformer = pytest.mark.parametrize("config", COMBINATIONS, ids=_name)
every_combination = pytest.mark.parametrize("config", COMBINATIONS + FOR_COMPARISON, ids=_name)
every_combination_that_decodes = pytest.mark.parametrize("config", _decoders(COMBINATIONS + FOR_COMPARISON), ids=_name)
covering_combinations = pytest.mark.parametrize("config", COVERING + FOR_COMPARISON, ids=_name)
covering_combinations_that_decode = pytest.mark.parametrize("config", _decoders(COVERING + FOR_COMPARISON), ids=_name)


def make(config: ModelConfig, device: torch.device, dtype: torch.dtype = torch.float64) -> Transformer:
    """A model in evaluation mode whose biases and norms are random, too."""
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
    """Sentences for the encoder and the decoder, if the model has one, by argument name."""
    sides = {}
    if config.has_encoder:
        sides["src"] = sentences([5, 1, 7, 3], device)
    if config.has_decoder:
        sides["tgt_in"] = sentences([4, 6, 1, 5], device)
    return sides


def lengths_of_output(config: ModelConfig, sides: dict[str, list[Tensor]]) -> list[int]:
    return [len(row) for row in sides["tgt_in" if config.has_decoder else "src"]]
