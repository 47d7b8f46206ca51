"""The dropout mask of the attention kernels in plain torch."""

import torch
from jaxtyping import Bool
from torch import Tensor

from heed.backends.base import dropout_threshold


def dropped(
    seed: int, heads: int, targets: int, sources: int, dropout: float, device: torch.device
) -> Bool[Tensor, "H targets sources"]:
    """True where an attention weight is dropped, by the kernels' hash of seed, head, row and column."""
    query = torch.arange(targets, device=device)[:, None] * heads + torch.arange(heads, device=device)[:, None, None]
    row = _mixed(seed + query)
    return _mixed(row + torch.arange(sources, device=device)) < dropout_threshold(dropout)


def _mixed(x: Tensor) -> Tensor:
    x = x & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x735A2D97) & 0xFFFFFFFF
    return x ^ (x >> 15)
