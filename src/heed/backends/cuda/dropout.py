"""Dropout by a hash, for compiled layers on a GPU.

The fate of number i of a tensor is a hash of i and a seed, cheap enough to be computed again in the backward pass, so
that nothing needs to be kept; torch's own generator takes longer than all the reading and writing around it. It is
written in plain torch, for torch.compile to fuse it with its neighbours. Kernels of our own (attention weights here,
everything in compiled code on a CPU) hash row and column instead: `tests/reference/dropout.py` says which they drop.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn


class HashedDropout(nn.Module):
    """Sets a share of the numbers to zero and makes up for it in the others; which ones follows from `seed`."""

    seed: Int[Tensor, "2"]

    def __init__(self, share: float, seed: Int[Tensor, "2"]) -> None:
        super().__init__()
        self.share = share
        self.register_buffer("seed", seed, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """What is left of x."""
        if not self.training or self.share == 0.0:
            return x
        number = torch.arange(x.numel(), dtype=torch.int32, device=x.device).view(x.shape)
        return torch.where(kept(number, self.seed, self.share), x * (1 / (1 - self.share)), 0.0)


def kept(number: Int[Tensor, "*any"], seed: Int[Tensor, "2"], share: float) -> Bool[Tensor, "*any"]:
    """Which of the numbers dropout leaves: a hash of 32 bits, its seed in two halves."""
    x = number ^ seed[0]
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x21F0AAAD + seed[1]
    x = (x ^ ((x >> 15) & 0x1FFFF)) * 0x735A2D97
    x = (x ^ ((x >> 15) & 0x1FFFF)) * 0x1B56C4E9
    x = x ^ ((x >> 14) & 0x3FFFF)
    return (x & 0x7FFFFFFF) >= round(share * 2**31)


def with_hashed_dropout(parts: Iterable[nn.Module], device: torch.device) -> Int[Tensor, "dropouts 2"]:
    """Give parts that will be compiled this dropout in all places of torch's own.

    Returns the seeds, to be drawn anew for each pass. What is not compiled is better off with torch's.
    """
    places = [
        (parent, name, part)
        for whole in parts
        for parent in whole.modules()
        for name, part in parent.named_children()
        if isinstance(part, nn.Dropout)
    ]
    seeds = torch.zeros(len(places), 2, dtype=torch.int32, device=device)
    for (parent, name, part), seed in zip(places, seeds, strict=True):
        setattr(parent, name, HashedDropout(part.p, seed))
    return seeds
