"""Dropout by a hash of the element index, for layers that torch.compile fuses on a GPU.

The mask of element i is a hash of i and a seed, cheap enough to be recomputed in the backward pass, so no mask is
stored; torch's random generator takes longer than the memory traffic around it. It is written in plain torch, so that
torch.compile fuses it with its neighbours. The Triton and C kernels hash row and column instead; their reference is
`tests/reference/dropout.py`.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn


class HashedDropout(nn.Module):
    """Replacement of `nn.Dropout` whose mask is a hash of `seed` and the element index."""

    seed: Int[Tensor, "2"]

    def __init__(self, rate: float, seed: Int[Tensor, "2"]) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("seed", seed, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return x
        index = torch.arange(x.numel(), dtype=torch.int32, device=x.device).view(x.shape)
        return torch.where(keep_mask(index, self.seed, self.rate), x * (1 / (1 - self.rate)), 0.0)


def keep_mask(index: Int[Tensor, "*any"], seed: Int[Tensor, "2"], rate: float) -> Bool[Tensor, "*any"]:
    """The dropout mask of these element indices: a 32-bit hash with a seed of two words."""
    x = index ^ seed[0]
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x21F0AAAD + seed[1]
    x = (x ^ ((x >> 15) & 0x1FFFF)) * 0x735A2D97
    x = (x ^ ((x >> 15) & 0x1FFFF)) * 0x1B56C4E9
    x = x ^ ((x >> 14) & 0x3FFFF)
    return (x & 0x7FFFFFFF) >= round(rate * 2**31)


def use_hashed_dropout(modules: Iterable[nn.Module], device: torch.device) -> Int[Tensor, "dropouts 2"]:
    """Replace every `nn.Dropout` of modules that will be compiled; uncompiled ones are faster with torch's.

    Returns the seeds, to be redrawn before each pass.
    """
    dropouts = [
        (parent, name, dropout)
        for module in modules
        for parent in module.modules()
        for name, dropout in parent.named_children()
        if isinstance(dropout, nn.Dropout)
    ]
    seeds = torch.zeros(len(dropouts), 2, dtype=torch.int32, device=device)
    for (parent, name, dropout), seed in zip(dropouts, seeds, strict=True):
        setattr(parent, name, HashedDropout(dropout.p, seed))
    return seeds
