"""The presets of model settings, by name: in what each differs from the paper's base model.

Enters: a name. Leaves: settings. Knows nothing of torch, devices or files.
"""

from typing import Any

from heed.errors import ConfigError
from heed.settings import did_you_mean


def model_preset(name: str) -> dict[str, Any]:
    """The settings in which a preset differs from the paper's base model."""
    regularised = {"dropout": 0.3, "attention_dropout": 0.0, "activation_dropout": 0.0, "norm": "pre"}
    presets: dict[str, dict[str, Any]] = {
        "tiny": {"d_model": 128, "heads": 4, "encoder_layers": 4, "decoder_layers": 4, "d_ff": 256, **regularised},
        "small": {"d_model": 256, "heads": 4, "encoder_layers": 3, "decoder_layers": 3, "d_ff": 1024, "norm": "pre"},
        "base": {},
        "big": {"d_model": 1024, "heads": 16, "d_ff": 4096, "dropout": 0.3},
    }
    if name not in presets:
        raise ConfigError(f"unknown preset {name!r}: {did_you_mean(name, presets)}")
    return presets[name]
