"""The longest sequence that a model takes: only learned positions have a limit. Imports no torch."""

from heed.config import ModelConfig
from heed.errors import InputError


def check_length(config: ModelConfig, length: int) -> None:
    """Refuse a sequence that is longer than the learned positions of a model."""
    if config.positions == "learned" and length > config.max_length:
        raise InputError(
            f"a sequence of {length} tokens is longer than the {config.max_length} learned positions of this model: "
            "shorten it, or train with positions = 'sinusoidal' or 'rotary', which have no limit"
        )
