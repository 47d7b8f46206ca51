"""What a run learns. One `Task` says what its text is, what a batch holds, what the loss is and what trying means.

The trainer knows nothing else of it. `heed.training.tasks` has them all.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from heed.config import DataConfig, RunConfig
from heed.model.attention import Attend
from heed.model.transformer import Transformer
from heed.text.corpus import Corpus
from heed.text.prepare import Encoders
from heed.text.prepared import Prepared
from heed.text.sentences import SourceLengths
from heed.text.tokenizer import Tokenizer
from heed.training.batches import Batch, Numbers, Ragged, Random
from heed.training.distributed import Team

LossOfVectors: TypeAlias = Callable[[Tensor, Tensor, Tensor | None, Tensor, int, float], Tensor]
Tokenizers: TypeAlias = tuple[Tokenizer, Tokenizer]


# What a task may measure besides its loss, and how it is written.
METRICS = {"bleu": "BLEU {:.1f}", "bits_per_byte": "{:.3f} bits a byte", "accuracy": "accuracy {:.1f} %"}


@dataclass(frozen=True)
class Validation:
    """How well a model does on text it does not learn from."""

    loss: float
    score: float | None = None  # by the task's own metric
    sample: tuple[str, str, str] | None = None  # what was given, what was wanted, what came
    metric: str = "bleu"  # one of METRICS
    outputs: int = 0  # translations written to find the score
    truncated: int = 0  # those of them that the length limit cut off


@dataclass(frozen=True)
class HeldOut:
    """Text to validate on: as ids, and the first texts of it as they are, source and target."""

    pairs: Prepared
    samples: list[list[str]]
    lengths: SourceLengths | None = None  # of the training sources


Validate: TypeAlias = Callable[[Transformer, int], Validation]


@runtime_checkable
class Task(Protocol):
    """What a run learns."""

    @property
    def kind(self) -> Literal["encoder-decoder", "decoder", "encoder"]:
        """Of model."""

    @property
    def metric(self) -> str:
        """One of METRICS: what it is judged by besides its loss."""

    @property
    def sides(self) -> tuple[str, ...]:
        """Of a pair, those that are text and make the vocabulary."""

    @property
    def defaults(self) -> dict[str, dict[str, Any]]:
        """Settings that suit it better than a preset's."""

    def corpus(self, corpus: Corpus, data: DataConfig) -> Corpus:
        """The corpus as this task reads it; one that it cannot learn from raises."""

    def settle(self, data: DataConfig, corpora: Iterable[Corpus]) -> DataConfig:
        """The settings with what follows from the text; settings that cannot be honoured raise."""

    def shape(self, data: DataConfig) -> dict[str, Any]:
        """The settings of the model that follow from the text, besides its vocabulary."""

    def encoders(self, tokenizers: Tokenizers, data: DataConfig) -> Encoders:
        """What makes ids of both sides of a pair."""

    def sizes(self, pairs: Prepared) -> Numbers:
        """What each pair takes of a batch's budget of tokens."""

    def collate(self, source: Ragged, target: Ragged, random: Random) -> Batch:
        """A batch of pairs; what is random about it comes from `random`."""

    def loss(
        self,
        model: Transformer,
        batch: Batch,
        config: RunConfig,
        attend: Attend,
        loss_of_vectors: LossOfVectors | None = None,
    ) -> Float[Tensor, ""]:
        """What is to become smaller, summed over a batch that lies where the model does.

        loss_of_vectors: what finds the loss of the vectors before the output matrix, if there is such a thing; none:
        by way of the logits.
        """

    def validator(self, config: RunConfig, tokenizers: Tokenizers, held_out: HeldOut, team: Team) -> Validate:
        """What tries a model at a step."""
