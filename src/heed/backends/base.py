"""The backend protocol: the types through which search and training use any implementation of the model.

For inference a backend returns a `Start`, from which heed's searches continue step by step, or runs the whole search
itself. For training it returns `TrainingOps`: a model with the same weights and fast forward and backward passes. Every
backend computes what the reference, `Transformer` in plain torch, computes; docs/backends.md lists the tests.

`heed.backends.select` chooses a backend; no other module checks what the hardware supports.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.torch.search_ops import Continuations, argmax, beam_step, topk
from heed.config import ModelConfig
from heed.model.attention import AttentionFn
from heed.model.transformer import Transformer
from heed.search_config import SearchConfig

S = TypeVar("S", bound="State")
Sources: TypeAlias = Sequence[Sequence[int]]  # token ids of each source, without special tokens
Prefixes: TypeAlias = Sequence[Sequence[int]] | None  # token ids that each output must begin with


@dataclass(frozen=True)
class BackendChoice:
    """The selected backend, and the reason for the selection."""

    backend: str  # cuda, cpu, torch, reference, ctranslate2 or onnx
    dtype: str  # of its matmuls
    device: str
    reason: str

    @property
    def name(self) -> str:
        """Backend and dtype: `cpu int8`."""
        return f"{self.backend} {self.dtype}"

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


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


@dataclass(frozen=True)
class Hypothesis:
    """A finished output sequence. `log_prob` includes the eos, `ids` does not."""

    ids: tuple[int, ...]
    log_prob: float
    score: float  # log_prob / length_penalty; the length includes the eos
    truncated: bool = False  # cut off by the length limit: the most probable next token was not the eos

    @classmethod
    def of(cls, ids: Sequence[int], log_prob: float, alpha: float, *, truncated: bool = False) -> "Hypothesis":
        """A hypothesis with its length-normalised score."""
        return cls(tuple(ids), log_prob, log_prob / length_penalty(len(ids) + 1, alpha), truncated)


def length_penalty(length: int, alpha: float) -> float:
    """The divisor that keeps short hypotheses from winning by their length (Wu et al., 2016)."""
    return float(((5 + length) / 6) ** alpha)


@dataclass(frozen=True)
class SearchMonitor:
    """Callbacks that cancel sentences of a running search or do other work between its steps.

    is_cancelled(sentence_id): whether the result of this sentence is no longer needed. before_step(): called before
    each step; may run another search, or raise to abort. cancel_after: cancellation takes effect only after this many
    steps, because a prefix or a minimum length does not let a sentence finish earlier.
    """

    is_cancelled: Callable[[int], bool]
    before_step: Callable[[], None]
    cancel_after: int = 0


@runtime_checkable
class Backend(Protocol):
    """A model, or an ensemble, ready for inference."""

    @property
    def choice(self) -> BackendChoice:
        """The name of this backend, and the reason it was selected."""

    @property
    def configs(self) -> Sequence[ModelConfig]:
        """The configuration of each model of the ensemble."""

    @property
    def tokens_per_batch(self) -> int:
        """The recommended batch size in tokens, padding and beam included."""

    @property
    def can_step(self) -> bool:
        """Whether `start` works; False: only whole searches."""

    def start(self, sources: Sources) -> Start[Any]:
        """Encode the sources for a stepwise search."""

    def search(
        self,
        sources: Sources,
        max_lengths: Sequence[int],
        config: SearchConfig,
        prefixes: Prefixes,
        monitor: SearchMonitor | None,
    ) -> list[list[Hypothesis]] | None:
        """Run the whole search; returns the best hypotheses of each source, best first.

        None: not supported for these settings, so the caller searches step by step. monitor: its numbers are indices
        of the sources.
        """


# ---- training --------------------------------------------------------------------------------------------------------


# Output projection and label-smoothed cross-entropy fused, so that the logits are never materialised as a whole. Takes
# hidden states (N, D), weight (V, D), bias, tgt_out (N), pad_id, smoothing; returns the loss summed over real tokens.
FusedLoss: TypeAlias = Callable[[Tensor, Tensor, Tensor | None, Tensor, int, float], Tensor]


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
