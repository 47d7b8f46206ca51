"""Dropout on a CPU without a compiler: 16 raw random bits decide on a number, four numbers share a generator step.

torch's own takes a step of a slower generator for each number, on one core.
"""

import numpy as np
import torch
from torch import Tensor, nn

from heed.model.transformer import replace_parts


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
    replace_parts(model, nn.Dropout, lambda part: RawDropout(part.p))
