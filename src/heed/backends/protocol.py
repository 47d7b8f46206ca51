"""The backend protocol: what any implementation of the model provides for inference.

A backend runs the whole search itself, or returns a `Start` (base.py), from which heed's searches continue step by
step. Every backend computes what the reference, `Transformer` in plain torch, computes; docs/backends.md lists the
tests. Knows nothing of torch.

`heed.backends.select` chooses a backend; no other module checks what the hardware supports.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from heed.config import ModelConfig
from heed.search_config import SearchConfig

if TYPE_CHECKING:
    import heed.backends.base

Sources: TypeAlias = Sequence[Sequence[int]]  # token ids of each source, without special tokens
Prefixes: TypeAlias = Sequence[Sequence[int]] | None  # token ids that each output must begin with

CPU_TOKENS, GPU_TOKENS = 4096, 65_536  # recommended batch sizes, padding and beam included


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
    steps, because a prefix or a minimum length does not let a sentence finish earlier. every_step: False: where steps
    take less than a few milliseconds, several of them may pass between two calls.
    """

    is_cancelled: Callable[[int], bool]
    before_step: Callable[[], None]
    cancel_after: int = 0
    every_step: bool = True


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

    def start(self, sources: Sources) -> "heed.backends.base.Start[Any]":
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


@runtime_checkable
class WholeSearch(Protocol):
    """A whole search over one model, such as the CUDA engine or compiled C."""

    def search(
        self,
        sources: Sources,
        max_lengths: Sequence[int],
        config: SearchConfig,
        prefixes: Prefixes = None,
        monitor: SearchMonitor | None = None,
    ) -> list[list[Hypothesis]] | None:
        """The best hypotheses of each source, best first; None: a stepwise search runs, or says what is wrong."""
