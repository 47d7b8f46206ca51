"""Which numbers our kernels drop: their hash of row and column, number by number in plain torch."""

import torch
from jaxtyping import Bool
from torch import Tensor

from heed.backends.base import dropout_threshold


def dropped(
    seed: int, heads: int, targets: int, sources: int, dropout: float, device: torch.device
) -> Bool[Tensor, "H targets sources"]:
    """Which of attention's weights dropout takes: the kernels' hash, number by number in plain torch."""
    query = torch.arange(targets, device=device)[:, None] * heads + torch.arange(heads, device=device)[:, None, None]
    row = _mixed(seed + query)
    return _mixed(row + torch.arange(sources, device=device)) < dropout_threshold(dropout)


def _mixed(x: Tensor) -> Tensor:
    x = x & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x735A2D97) & 0xFFFFFFFF
    return x ^ (x >> 15)
