"""The numbers a model starts from."""

import math

from torch import nn

from heed.config import ModelConfig


def initialise(model: nn.Module, config: ModelConfig) -> None:
    """Give every weight its first value, from torch's global random state.

    | weight                               | first value                         | why                                 |
    |--------------------------------------|-------------------------------------|-------------------------------------|
    | word embeddings, and the tied output | normal, deviation d_model^-0.5      | times √d_model they are about 1     |
    | learned positions                    | normal, deviation d_model^-0.5      | small beside the words at the start |
    | W_Q, W_K, W_V, W_O, feed-forward,    | uniform ±√(6 / (inputs + outputs)), | signals keep their size, forward    |
    | untied output                        | "Xavier"                            | and backward                        |
    | every bias                           | 0                                   |                                     |
    | layer norm                           | scale 1, shift 0                    |                                     |
    """
    for module in model.modules():
        match module:
            case nn.Embedding():
                nn.init.normal_(module.weight, std=1 / math.sqrt(config.d_model))
            case nn.Linear():
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
            case nn.LayerNorm():
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)
