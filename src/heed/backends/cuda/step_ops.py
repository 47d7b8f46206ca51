"""Operations of a CUDA decoder step besides its matmuls: their signatures and parameter types.

`triton_ops.TRITON` implements them as Triton kernels, `tests/reference/step_ops.py` in plain torch. Each treats every
row (a hypothesis) independently, except `beam_step` and `encoder_attention`. Sums accumulate in float32 or float64.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from jaxtyping import Float
from torch import Tensor, nn

from heed.backends.cuda.slots import Slots
from heed.model.attention import AttentionFn
from heed.model.layers import Residual


class NormParams(NamedTuple):
    """The parameters of a layer norm."""

    weight: Float[Tensor, "D"]
    bias: Float[Tensor, "D"]
    eps: float


class ResidualNorm(NamedTuple):
    """What follows a sub-layer's last matmul: its bias, the sandwich norm if any, the residual sum, a norm of the sum.

    is_post: the normalised sum replaces the residual stream (post-norm); else it is only the next sub-layer's input.
    """

    bias: Float[Tensor, "D"]
    outer_norm: NormParams | None
    norm: NormParams
    is_post: bool


def residual_norms(
    sublayers: Sequence[tuple[Residual, nn.Linear]], last: nn.Module
) -> tuple[NormParams | None, list[ResidualNorm]]:
    """The norm before the first sub-layer, if any, and the residual connection and norm after each.

    sublayers: the residual wrapper of each sub-layer, and its last linear layer. In pre- and sandwich-norm models the
    norm after a sub-layer is the one before the next sub-layer, and after the last one it is the stack's final norm.
    """
    norms = [_norm_params(residual.norm) for residual, _ in sublayers]
    if sublayers[0][0].order == "post":
        pairs = zip(sublayers, norms, strict=True)
        return None, [ResidualNorm(linear.bias, None, norm, is_post=True) for (_, linear), norm in pairs]
    following = [*norms[1:], _norm_params(cast("nn.LayerNorm", last))]
    outer = [None if residual.outer_norm is None else _norm_params(residual.outer_norm) for residual, _ in sublayers]
    return norms[0], [
        ResidualNorm(linear.bias, outer_norm, norm, is_post=False)
        for (_, linear), outer_norm, norm in zip(sublayers, outer, following, strict=True)
    ]


def _norm_params(norm: nn.LayerNorm) -> NormParams:
    return NormParams(norm.weight, norm.bias, norm.eps)


class EmbeddingParams(NamedTuple):
    """Token embedding: a row of the table times `scale`, plus the position's embedding if any, then a norm if any."""

    table: Float[Tensor, "V D"]
    scale: float
    positions: Float[Tensor, "T D"] | None  # position embeddings up to the slots' target length
    rotation: Float[Tensor, "2 T half"] | None  # cosines and sines of rotary positions
    norm: NormParams | None


class SpecialIds(NamedTuple):
    pad_id: int
    bos_id: int
    eos_id: int


StreamAndInput = tuple[Tensor, Tensor]  # the residual stream, and the input of the next sub-layer


@dataclass(frozen=True)
class StepOps:
    """The operations between the matmuls of a decoder step.

    embed: the newest token of each row, to the residual stream and the input of the first sub-layer.
    add_residual_norm: adds a sub-layer's output, still without its bias, to the residual stream and normalises it.
    self_attention: appends the new keys and values to the KV cache; each row attends to its past and itself.
    cross_attention: all hypotheses of a sentence attend to its source.
    beam_step: a beam step of all unfinished sentences, as defined by `decoding.search`.
    """

    embed: Callable[[EmbeddingParams, Slots], StreamAndInput]
    add_residual_norm: Callable[[Tensor, Tensor, ResidualNorm], StreamAndInput]
    self_attention: Callable[[Tensor, Tensor, Slots, int, Tensor | None], Tensor]
    cross_attention: Callable[[Tensor, Tensor, Slots, int], Tensor]
    beam_step: Callable[[Tensor, Tensor | None, Slots, SpecialIds], None]
    encoder_attention: AttentionFn  # between packed sentences
