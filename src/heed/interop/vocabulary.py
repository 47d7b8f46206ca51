"""The words of another system's model as heed has them: their order, their scale and the one that starts a sentence."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from heed.config import ModelConfig

_NEVER = -100.0  # nats below the token whose vector it has: probability 0 in float32, yet no infinity to train with


@dataclass(frozen=True)
class Numbering:
    """Which of their ids each of heed's ids was, for one side's vocabulary."""

    theirs: tuple[int, ...]

    @classmethod
    def of(cls, size: int, pad: int, start: int, eos: int, unk: int | None) -> "Numbering":
        """⟨pad⟩, ⟨s⟩ and ⟨/s⟩ first, the unknown token last, all others in their order between.

        Some start decoding with the token that pads or ends. heed has a token of its own for it, a copy of that one.
        """
        last = [] if unk is None else [unk]
        others = [number for number in range(size) if number not in (pad, start, eos, unk)]
        return cls((pad, start, eos, *others, *last))

    def rows(self, matrix: Shaped[Tensor, "V *D"]) -> Shaped[Tensor, "N *D"]:
        """The rows of a word matrix, or the numbers of a bias, in heed's order."""
        return matrix[torch.tensor(self.theirs)]


def never_start(bias: Float[Tensor, "V"]) -> Float[Tensor, "V"]:
    """The output's bias with which ⟨s⟩, a copy of another token, is never said and takes no probability from others."""
    changed = bias.clone()
    changed[1] += _NEVER
    return changed


def scaled(ours: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """The weights of a model whose word vectors were not multiplied by √d_model as those of one whose are.

    heed always multiplies them, so they are divided here. Tied, they make the logits too, which would be divided as
    well: so what enters the output, the scale and shift of the decoder's last norm, is multiplied instead.
    """
    factor, changed = math.sqrt(config.d_model), dict(ours)
    for name in ("vocabulary.embedding.weight", "vocabulary.source_embedding.weight"):
        if name in changed:
            changed[name] = changed[name] / factor
    if config.tie_embeddings:
        last = f"layers.{config.decoder_layers - 1}.around_feed_forward.norm" if config.norm == "post" else "norm"
        for part in ("weight", "bias"):
            changed[f"decoder.{last}.{part}"] = changed[f"decoder.{last}.{part}"] * factor
    return changed
