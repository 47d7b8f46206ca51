"""Dropout that costs little, where torch's own takes longer than all the reading and writing around it.

By a hash, for a compiled GPU: the fate of number i of a tensor is a hash of i and a seed, cheap enough to be done again
on the way back, so that nothing needs to be kept. It is written in plain torch, for the compiler to make one kernel of
it and its neighbours.

By a hash of row and column, for kernels of our own (attention's weights on a GPU, everything in compiled code on a
CPU): `dropped` says in plain torch what they take.

By raw bits, for a CPU without a compiler: sixteen bits decide on a number, and four numbers share one step of a random
generator; torch takes a step of a slower one for each, on one core.
"""

from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from heed.model.transformer import replace_parts


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


def dropped(
    seed: int, heads: int, targets: int, sources: int, dropout: float, device: torch.device
) -> Bool[Tensor, "H targets sources"]:
    """Which of attention's weights dropout takes: the kernels' hash, number by number in plain torch."""
    query = torch.arange(targets, device=device)[:, None] * heads + torch.arange(heads, device=device)[:, None, None]
    row = _mixed(seed + query)
    return _mixed(row + torch.arange(sources, device=device)) < threshold(dropout)


def _mixed(x: Tensor) -> Tensor:
    x = x & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x735A2D97) & 0xFFFFFFFF
    return x ^ (x >> 15)


def threshold(dropout: float) -> int:
    """Hashes below this are dropped."""
    return min(round(dropout * 2**32), 2**32 - 1)


class RawDropout(nn.Module):
    """The same from raw random bits; which ones follows from torch's own generator."""

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
