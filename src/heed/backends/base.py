"""The types through which stepwise searches and training use any implementation of the model, with torch.

For inference a backend returns a `Start`, from which heed's searches continue step by step; the rest of what a backend
provides is in protocol.py. For training it returns `TrainingOps`: a model with the same weights and fast forward and
backward passes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.torch.search_ops import Continuations, argmax, beam_step, topk
from heed.model.attention import AttentionFn
from heed.model.transformer import Transformer

S = TypeVar("S", bound="State")


# ---- inference -------------------------------------------------------------------------------------------------------


@runtime_checkable
class State(Protocol):
    """The decoder state of R = B·W hypotheses, W for each of B sentences. The model's `KVCache` implements it."""

    def select(self: S, rows: Int[Tensor, "B W"], sentences: Int[Tensor, "B"] | None = None) -> S:
        """Reorder for the next beam step: row rows[b, w] becomes hypothesis w of sentence b.

        sentences: indices of the sentences to keep; none: all of them, in order.
        """


@runtime_checkable
class Stepper(Protocol):
    """A decoder that consumes one token per row and step; the layout of its KV cache is its own."""

    def start(self, src: Int[Tensor, "B S"]) -> Any:
        """Encode the source; returns the state before the first target token."""

    def step(self, ids: Int[Tensor, "R"], state: Any, /) -> tuple[Float[Tensor, "R V"], Any]:
        """Logits after the next token of each row, and the state that includes it."""


class SearchOps(NamedTuple):
    """The inner loops of a search; each reads the log-probabilities of the whole vocabulary once.

    beam_step(live, log_probs, eos_id): the best W unfinished continuations of each sentence's W hypotheses, and the
    finished ones among the best W of all, or None if none finished. topk(log_probs, count): values and ids, best first.
    argmax(log_probs): ids. Ties go to the lower id.
    """

    beam_step: Callable[[Tensor, Tensor, int], tuple[Continuations, Continuations | None]]
    topk: Callable[[Tensor, int], tuple[Tensor, Tensor]]
    argmax: Callable[[Tensor], Tensor]


TORCH_OPS = SearchOps(beam_step, topk, argmax)  # on any device

Step: TypeAlias = Callable[[Int[Tensor, "R"], S], tuple[Float[Tensor, "R V"], S]]


@dataclass(frozen=True)
class Start(Generic[S]):
    """The starting point of a search, which runs on the device of `first`.

    step returns log-probabilities, -inf for tokens that must never be chosen; the search may modify them in place.
    """

    step: Step[S]
    state: S  # B rows, one per sentence
    first: Int[Tensor, "B"]  # the first decoder input of each sentence (bos); not part of any hypothesis
    eos_id: int
    ops: SearchOps = TORCH_OPS


# ---- training --------------------------------------------------------------------------------------------------------


# Output projection and `training.loss.loss_of_logits` fused, so that the logits are never materialised as a whole.
# Takes hidden states (N, D), weight (V, D), bias, tgt_out (N), pad_id, smoothing and r_drop; returns the loss summed
# over real tokens.
FusedLoss: TypeAlias = Callable[[Tensor, Tensor, Tensor | None, Tensor, int, float, float], Tensor]


@dataclass(frozen=True)
class TrainingOps:
    """The operations of one model's forward and backward pass."""

    model: Transformer  # shares the trained model's weights, or holds a copy in another dtype
    attend: AttentionFn
    fused_loss: FusedLoss | None = None  # none: the task's loss of materialised logits
    logits_in_memory: int | None = None  # peak number of logits under `fused_loss`; none: all of them
    dropout_seeds: Int[Tensor, "dropouts 2"] | None = None  # to be redrawn before each pass


def dropout_threshold(rate: float) -> int:
    """For dropout by a 32-bit hash: elements whose hash is below this threshold are dropped."""
    return min(round(rate * 2**32), 2**32 - 1)
