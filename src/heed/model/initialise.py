"""The numbers a model starts from."""

import math

from torch import nn

from heed.config import ModelConfig
from heed.model.attention import MultiHeadAttention


def initialise(model: nn.Module, config: ModelConfig) -> None:
    """Give every weight its first value, from torch's global random state.

    | weight                               | first value                         | why                                 |
    |--------------------------------------|-------------------------------------|-------------------------------------|
    | word embeddings, and the tied output | normal, deviation d_model^-0.5      | times √d_model they are about 1     |
    | learned positions                    | normal, deviation d_model^-0.5      | small beside the words at the start |
    | W_O, feed-forward, untied output     | uniform ±√(6 / (inputs + outputs)), | signals keep their size, forward    |
    |                                      | "Xavier"                            | and backward                        |
    | W_Q, W_K, W_V                        | the same divided by √2: Xavier for  | attention starts more even, and     |
    |                                      | the three as one matrix             | learns sooner what to look at       |
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
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            for projection in (module.query, module.key, module.value):
                nn.init.xavier_uniform_(projection.weight, gain=1 / math.sqrt(2))
