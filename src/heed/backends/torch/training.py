"""Training with torch operators: the portable path, on any device.

On a CPU without a compiler dropout takes 16 raw random bits per number, and four numbers share a step of the generator;
torch's own takes a step of a slower one for each, on one core.
"""

import numpy as np
import torch
from torch import Tensor, nn

from heed.backends.base import TrainingOps
from heed.model.attention import fused_attention
from heed.model.layers import DecoderLayer, EncoderLayer
from heed.model.transformer import Transformer, copy_sharing_weights, replace_modules


class RawDropout(nn.Module):
    """Zeroes a share of the numbers and scales the others up; which ones follows from torch's own generator."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        """What is left of x."""
        if not self.training or self.share == 0.0:
            return x
        seed = int(torch.randint(2**63 - 1, (), device="cpu"))
        words = np.random.SFC64(seed).random_raw(-(-x.numel() // 4))
        bits = torch.from_numpy(words.view(np.int16)[: x.numel()]).view(x.shape)
        left = (bits >= round(self.share * 2**16) - 2**15).to(x.dtype)
        return x * left.mul_(1 / (1 - self.share))


def with_raw_dropout(model: nn.Module) -> None:
    """Give a model this dropout in all places of torch's own."""
    replace_modules(model, nn.Dropout, lambda part: RawDropout(part.p))


def training_ops(model: Transformer, *, is_sharded: bool, compile_layers: bool) -> TrainingOps:
    """is_sharded: the model itself runs on a CPU, since sharded weights allow no second model around them."""
    if compile_layers:
        compiled = copy_sharing_weights(model)
        compile_all_layers(compiled, dynamic=True)
        return TrainingOps(compiled, fused_attention)
    if model.vocabulary.embedding.weight.device.type != "cpu":
        return TrainingOps(model, fused_attention)
    run = model if is_sharded else copy_sharing_weights(model)
    with_raw_dropout(run)
    return TrainingOps(run, fused_attention)


def layers_of(model: Transformer) -> list[EncoderLayer | DecoderLayer]:
    """All layers of a model."""
    return [part for part in model.modules() if isinstance(part, EncoderLayer | DecoderLayer)]


def compile_all_layers(model: Transformer, *, dynamic: bool) -> None:
    """torch.compile every layer: each kind once, for all layers of it."""
    for layer in layers_of(model):
        layer.compile(dynamic=dynamic, fullgraph=True)
