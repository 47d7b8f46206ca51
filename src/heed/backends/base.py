"""What a backend is: the arithmetic of a model in one more form, for inference and for training.

For inference a backend gives a `Start`, from which heed's own searches go on step by step, or a whole search of its
own. For training it gives `TrainingOps`: a model of the same weights whose forward and backward pass are fast. Each
form computes what the reference computes, `Transformer` in plain torch; docs/backends.md lists which test proves it.

`heed.backends.select` chooses among them; nothing here, and nothing above, asks what the machine can do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.torch.search_ops import Continuations, argmax, beam_step, topk
from heed.config import ModelConfig, SearchConfig
from heed.model.attention import AttentionFn
from heed.model.transformer import Transformer

S = TypeVar("S", bound="State")
Sources: TypeAlias = Sequence[Sequence[int]]  # token ids of each source, without special tokens
Prefixes: TypeAlias = Sequence[Sequence[int]] | None  # token ids that each output must begin with


@dataclass(frozen=True)
class BackendChoice:
    """Which backend runs, and why that one."""

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
    """What a step function remembers of R = B·W hypotheses, W for each of B sentences. A model's `Cache` is one."""

    def select(self: S, rows: Int[Tensor, "B W"], sentences: Int[Tensor, "B"] | None = None) -> S:
        """The state in which row rows[b, w] goes on as hypothesis w of sentence b.

        sentences says which of the old sentences those are; none: all of them, as they are.
        """


@runtime_checkable
class Stepper(Protocol):
    """A model that takes one token per row at a time, whatever its KV cache looks like."""

    def start(self, src: Int[Tensor, "B S"]) -> Any:
        """The state before the first token: the source encoded."""

    def step(self, ids: Int[Tensor, "R"], state: Any, /) -> tuple[Float[Tensor, "R V"], Any]:
        """Logits after the next token of each row, and the state that knows it."""


class SearchOps(NamedTuple):
    """The inner operations of a search; each reads log-probabilities of a whole vocabulary once.

    beam_step(live, log_probs, eos_id): of all continuations of each sentence's W hypotheses the best W that do not end,
    and the ends among the best W of all, or None if there are none. topk(log_probs, count): values and ids, best first.
    argmax(log_probs): ids. Of equals the lower id comes first.
    """

    beam_step: Callable[[Tensor, Tensor, int], tuple[Continuations, Continuations | None]]
    topk: Callable[[Tensor, int], tuple[Tensor, Tensor]]
    argmax: Callable[[Tensor], Tensor]


TORCH_OPS = SearchOps(beam_step, topk, argmax)  # on any device

Step: TypeAlias = Callable[[Int[Tensor, "R"], S], tuple[Float[Tensor, "R V"], S]]


@dataclass(frozen=True)
class Start(Generic[S]):
    """Where a search starts. It works on the device where `first` is.

    step gives log-probabilities, at most 0 and -inf for tokens that must never be chosen; the search may change them.
    """

    step: Step[S]
    state: S  # of B rows, one per sentence
    first: Int[Tensor, "B"]  # what each sentence begins with; not part of any hypothesis
    eos_id: int
    ops: SearchOps = TORCH_OPS


@dataclass(frozen=True)
class Hypothesis:
    """A sequence that has ended. Its log-probability counts the eos, which `ids` does not show."""

    ids: tuple[int, ...]
    log_prob: float
    score: float  # log_prob / length_penalty, the eos counted in the length too
    truncated: bool = False  # the length limit ended it: the model's most probable next token was not the eos

    @classmethod
    def of(cls, ids: Sequence[int], log_prob: float, alpha: float, *, truncated: bool = False) -> "Hypothesis":
        """With the score that follows from the rest."""
        return cls(tuple(ids), log_prob, log_prob / length_penalty(len(ids) + 1, alpha), truncated)


def length_penalty(length: int, alpha: float) -> float:
    """What a log-probability is divided by, that the short may not win for being short (Wu et al., 2016)."""
    return float(((5 + length) / 6) ** alpha)


@dataclass(frozen=True)
class SearchMonitor:
    """Who looks at a search before each of its steps.

    gone: whether nobody waits any more for the sentence of this number. before_step: may do other things, another
    search too, or raise to end it all. cancel_after: steps in which the rules (a prefix, a least length) do not let a
    sentence end.
    """

    is_cancelled: Callable[[int], bool]
    before_step: Callable[[], None]
    cancel_after: int = 0


@runtime_checkable
class Backend(Protocol):
    """A model, or several that translate together, ready for inference."""

    @property
    def choice(self) -> BackendChoice:
        """Which backend it is, and why."""

    @property
    def configs(self) -> Sequence[ModelConfig]:
        """The settings of each of its models."""

    @property
    def tokens_per_batch(self) -> int:
        """A good size for batches, padding and beam included."""

    @property
    def can_step(self) -> bool:
        """False: it only searches as a whole."""

    def start(self, sources: Sources) -> Start[Any]:
        """The sources encoded, ready for a search step by step."""

    def search(
        self,
        sources: Sources,
        max_lengths: Sequence[int],
        config: SearchConfig,
        prefixes: Prefixes,
        monitor: SearchMonitor | None,
    ) -> list[list[Hypothesis]] | None:
        """The best hypotheses of each source, best first, by a search of its own.

        None: it has none for these settings, and the caller goes step by step. monitor: by indices of the sources.
        """


# ---- training --------------------------------------------------------------------------------------------------------


# Output projection and label-smoothed cross-entropy in one, so that the logits are never materialised as a whole: the
# loss summed over all tokens but padding, of hidden states (N, D), weight (V, D), bias, tgt_out (N), pad_id, smoothing.
FusedLoss: TypeAlias = Callable[[Tensor, Tensor, Tensor | None, Tensor, int, float], Tensor]


@dataclass(frozen=True)
class TrainingOps:
    """What a forward and backward pass of one model is made of."""

    model: Transformer  # with the weights of the model that is trained, or a copy of them in another dtype
    attend: AttentionFn
    fused_loss: FusedLoss | None = None  # none: by logits, as the task's loss is written
    logits_in_memory: int | None = None  # logits that exist at a time under `fused_loss`; none: all of them
    dropout_seeds: Int[Tensor, "dropouts 2"] | None = None  # to be drawn anew before each pass


def dropout_threshold(share: float) -> int:
    """Dropout by a 32-bit hash: numbers whose hash is below this are dropped."""
    return min(round(share * 2**32), 2**32 - 1)
