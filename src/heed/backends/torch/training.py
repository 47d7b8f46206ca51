"""Training with torch operators on any device, with a faster dropout on CPUs without compiled C.

The dropout compares 16 random bits per element, so one 64-bit draw serves four elements; torch's dropout draws once
per element, from a slower generator, on one core.
"""

import numpy as np
import torch
from torch import Tensor, nn

from heed.backends.base import TrainingOps
from heed.model.attention import fused_attention
from heed.model.layers import DecoderLayer, EncoderLayer
from heed.model.transformer import Transformer, copy_sharing_weights, replace_modules


class BitwiseDropout(nn.Module):
    """Replacement of `nn.Dropout` on a CPU; its seeds come from torch's generator."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return x
        seed = int(torch.randint(2**63 - 1, (), device="cpu"))
        random_bits = np.random.SFC64(seed).random_raw(-(-x.numel() // 4))
        bits = torch.from_numpy(random_bits.view(np.int16)[: x.numel()]).view(x.shape)
        mask = (bits >= round(self.rate * 2**16) - 2**15).to(x.dtype)
        return x * mask.mul_(1 / (1 - self.rate))


def use_bitwise_dropout(model: nn.Module) -> None:
    """Replace every `nn.Dropout` of a model."""
    replace_modules(model, nn.Dropout, lambda dropout: BitwiseDropout(dropout.p))


def training_ops(model: Transformer, *, is_sharded: bool, compile_layers: bool) -> TrainingOps:
    """is_sharded: the model itself runs on a CPU, since sharded weights allow no copy that shares them."""
    if compile_layers:
        compiled = copy_sharing_weights(model)
        compile_all_layers(compiled, dynamic=True)
        return TrainingOps(compiled, fused_attention)
    if model.device.type != "cpu":
        return TrainingOps(model, fused_attention)
    run = model if is_sharded else copy_sharing_weights(model)
    use_bitwise_dropout(run)
    return TrainingOps(run, fused_attention)


def layers_of(model: Transformer) -> list[EncoderLayer | DecoderLayer]:
    return [module for module in model.modules() if isinstance(module, EncoderLayer | DecoderLayer)]


def compile_all_layers(model: Transformer, *, dynamic: bool) -> None:
    """Compile every layer with torch.compile; layers of the same type share the compiled code."""
    for layer in layers_of(model):
        layer.compile(dynamic=dynamic, fullgraph=True)
