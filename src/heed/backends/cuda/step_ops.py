"""What a decoder step in static buffers is made of besides matmuls: the operations and the types they take.

`triton_ops.TRITON` has them as GPU kernels; `tests/reference/step_ops.py` in plain torch, to compare with. All treat
each row, a hypothesis, on its own but two: `beam_step`, and `encoder_attention`. Sums are taken in float32 at least.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from heed.backends.cuda.slots import Slots
from heed.model.attention import AttentionFn


class Norm(NamedTuple):
    """The parameters of a layer norm."""

    weight: Float[Tensor, "D"]
    bias: Float[Tensor, "D"]
    eps: float


class Closing(NamedTuple):
    """What comes after a sub-layer: its bias, a norm of what it found, the sum, a norm of the sum.

    post: the norm of the sum takes the place of the sum; else it only goes into the next sub-layer.
    """

    bias: Float[Tensor, "D"]
    outer: Norm | None
    norm: Norm
    post: bool


class Words(NamedTuple):
    """How a token is embedded: its row, scaled, its position code added if there is one, then a norm if any.

    places and turns are as long as a slot is: position codes to add, or the cosines and sines that queries and keys are
    rotated by.
    """

    matrix: Float[Tensor, "V D"]
    scale: float
    places: Float[Tensor, "T D"] | None
    turns: Float[Tensor, "2 T half"] | None
    norm: Norm | None


class Special(NamedTuple):
    """Ids of the special tokens."""

    pad_id: int
    bos_id: int
    eos_id: int


Two = tuple[Tensor, Tensor]  # the stream of residual sums, and what goes into the next sub-layer


@dataclass(frozen=True)
class StepOps:
    """The operations between the matmuls of a decoder step.

    embed: the newest token of each row, to the residual stream and the input of the first sub-layer.
    add_residual_norm: the output of a sub-layer, without its bias yet, joins the residual stream.
    self_attention: the new keys and values join the KV cache, and each row attends to its own past and itself.
    cross_attention: all hypotheses of a sentence attend to its source.
    beam_step: a step of beam search for all sentences that are not over; `decoding.search` says what one is.
    """

    embed: Callable[[Words, Slots], Two]
    add_residual_norm: Callable[[Tensor, Tensor, Closing], Two]
    self_attention: Callable[[Tensor, Tensor, Slots, int, Tensor | None], Tensor]
    cross_attention: Callable[[Tensor, Tensor, Slots, int], Tensor]
    beam_step: Callable[[Tensor, Tensor | None, Slots, Special], None]
    encoder_attention: AttentionFn  # of packed sentences
