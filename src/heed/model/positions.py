"""Positional encodings: sinusoidal (paper, section 3.5), learned and rotary; for comparison the bare index, and none.

    PE[pos, 2i] = sin(pos / 10000^(2i/d))        PE[pos, 2i+1] = cos(pos / 10000^(2i/d))

Enters: integer positions from a layout. Leaves: encodings to add to the embeddings (sinusoidal, learned), or a
`Rotation` of queries and keys inside self-attention (rotary). Sinusoidal and rotary encodings are computed at every
call, so they have no maximum length.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from heed.config import ModelConfig
from heed.model.layout import AttentionPattern, Layout, Packed
from heed.model.limits import check_length


def angles(positions: Int[Tensor, "*tokens"], width: int) -> Float[Tensor, "*tokens half"]:
    """pos / 10000^(2i/width) for each pair i of dimensions; in float64 where the device has it."""
    dtype = torch.float32 if positions.device.type == "mps" else torch.float64
    two_i = torch.arange(0, width, 2, dtype=dtype, device=positions.device)
    return positions[..., None].to(dtype) * 10_000.0 ** (-two_i / width)


def sinusoids(positions: Int[Tensor, "*tokens"], width: int) -> Float[Tensor, "*tokens width"]:
    """The paper's positional encoding: sine and cosine interleaved, wavelengths from 2π to 10000 · 2π."""
    angle = angles(positions, width)
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(-2)


def _sinusoids_of(layout: Layout, width: int, dtype: torch.dtype) -> Float[Tensor, "*tokens width"]:
    if isinstance(layout, Packed):  # many tokens share a position: each position is computed once
        positions = torch.arange(layout.max_seqlen, device=layout.positions.device)
        return sinusoids(positions, width).to(dtype)[layout.positions]
    return sinusoids(layout.positions, width).to(dtype)


@dataclass(frozen=True)
class Rotation:
    """Rotary encoding: rotates the pair (2i, 2i+1) of each head, so that q·k depends on the relative position only."""

    cos: Float[Tensor, "*tokens 1 half"]
    sin: Float[Tensor, "*tokens 1 half"]

    @classmethod
    def at(cls, positions: Int[Tensor, "*tokens"], head_width: int, dtype: torch.dtype) -> "Rotation":
        angle = angles(positions, head_width)[..., None, :]
        return cls(angle.cos().to(dtype), angle.sin().to(dtype))

    def __call__(self, heads: Float[Tensor, "*tokens H K"]) -> Float[Tensor, "*tokens H K"]:
        """Rotate queries or keys by the angles of their positions."""
        even, odd = heads[..., 0::2], heads[..., 1::2]
        rotated = (even * self.cos - odd * self.sin, even * self.sin + odd * self.cos)
        return torch.stack(rotated, -1).flatten(-2)


class PositionalEncoding(nn.Module):
    """The positional encoding of the encoder or the decoder, as `config.positions` selects it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config, self.kind = config, config.positions
        self.head_width = config.head_width
        self.table = nn.Embedding(config.max_length, config.d_model) if self.kind == "learned" else None

    def forward(self, embedded: Float[Tensor, "*tokens D"], pattern: AttentionPattern) -> Float[Tensor, "*tokens D"]:
        """Add the positional encoding to the embeddings; rotary positions leave them unchanged."""
        if self.kind in ("rotary", "none"):
            return embedded
        if self.kind == "index":
            return embedded + pattern.queries.positions[..., None].to(embedded.dtype)
        if self.table is None:
            return embedded + _sinusoids_of(pattern.queries, embedded.shape[-1], embedded.dtype)
        keys = pattern.keys
        check_length(self.config, keys.max_seqlen if isinstance(keys, Packed) else keys.token_mask.shape[1])
        return embedded + self.table(pattern.queries.positions)

    def rotation(self, pattern: AttentionPattern, dtype: torch.dtype) -> Rotation | None:
        """The rotation of self-attention's queries and keys; None unless positions are rotary."""
        return Rotation.at(pattern.queries.positions, self.head_width, dtype) if self.kind == "rotary" else None
