"""Position encodings (paper, section 3.5).

    PE[pos, 2i] = sin(pos / 10000^(2i/d))        PE[pos, 2i+1] = cos(pos / 10000^(2i/d))

Enters: integer positions, as a layout gives them. Leaves: encodings to add to the embeddings (sinusoidal, learned), or
a `Rotation` of queries and keys inside self-attention (rotary). The formulas are computed at every call, so they have
no longest sentence.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from heed.config import ModelConfig
from heed.errors import InputError
from heed.model.layout import AttentionPattern, Layout, Packed


def angles(positions: Int[Tensor, "*tokens"], width: int) -> Float[Tensor, "*tokens half"]:
    """pos / 10000^(2i/width) for each pair of numbers i; in double precision where the device has it."""
    exact = torch.float32 if positions.device.type == "mps" else torch.float64
    pair = torch.arange(0, width, 2, dtype=exact, device=positions.device)
    return positions[..., None].to(exact) * 10_000.0 ** (-pair / width)


def sinusoids(positions: Int[Tensor, "*tokens"], width: int) -> Float[Tensor, "*tokens width"]:
    """The paper's position code: sine and cosine side by side, from quick waves to slow ones."""
    angle = angles(positions, width)
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(-2)


def _sinusoids_of(layout: Layout, width: int, dtype: torch.dtype) -> Float[Tensor, "*tokens width"]:
    if isinstance(layout, Packed):  # many tokens, few places: each place is worked out once
        places = torch.arange(layout.max_seqlen, device=layout.positions.device)
        return sinusoids(places, width).to(dtype)[layout.positions]
    return sinusoids(layout.positions, width).to(dtype)


@dataclass(frozen=True)
class Rotation:
    """Turns the pair (2i, 2i+1) of each head by its angle, so that a dot product depends on the distance alone."""

    cos: Float[Tensor, "*tokens 1 half"]
    sin: Float[Tensor, "*tokens 1 half"]

    @classmethod
    def at(cls, positions: Int[Tensor, "*tokens"], head_width: int, dtype: torch.dtype) -> "Rotation":
        """The rotation of tokens at these positions."""
        angle = angles(positions, head_width)[..., None, :]
        return cls(angle.cos().to(dtype), angle.sin().to(dtype))

    def __call__(self, heads: Float[Tensor, "*tokens H K"]) -> Float[Tensor, "*tokens H K"]:
        """Rotate queries or keys by the angles of their positions."""
        even, odd = heads[..., 0::2], heads[..., 1::2]
        turned = (even * self.cos - odd * self.sin, even * self.sin + odd * self.cos)
        return torch.stack(turned, -1).flatten(-2)


class PositionalEncoding(nn.Module):
    """Tells the tokens of one side, source or target, where they stand."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.kind = config.positions
        self.head_width = config.head_width
        self.table = nn.Embedding(config.max_length, config.d_model) if self.kind == "learned" else None

    def forward(self, embedded: Float[Tensor, "*tokens D"], pattern: AttentionPattern) -> Float[Tensor, "*tokens D"]:
        """The embeddings with the position encoding added; unchanged where positions are rotary."""
        if self.kind == "rotary":
            return embedded
        if self.table is None:
            return embedded + _sinusoids_of(pattern.queries, embedded.shape[-1], embedded.dtype)
        keys = pattern.keys
        longest = keys.max_seqlen if isinstance(keys, Packed) else keys.token_mask.shape[1]
        if longest > self.table.num_embeddings:
            raise InputError(
                f"a sequence of {longest} tokens is longer than the {self.table.num_embeddings} learned positions of "
                "this model: shorten it, or train with positions = 'sinusoidal' or 'rotary', which have no limit"
            )
        return embedded + self.table(pattern.queries.positions)

    def rotation(self, pattern: AttentionPattern, dtype: torch.dtype) -> Rotation | None:
        """How self-attention turns its queries and keys: not at all, unless positions are rotary."""
        return Rotation.at(pattern.queries.positions, self.head_width, dtype) if self.kind == "rotary" else None
