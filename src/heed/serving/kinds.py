"""What can be done with many texts at once: translating, writing on, sorting into classes, making vectors of them.

Each is a kind of job (`batcher.Kind`). Two jobs are of one kind if model and settings are the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from heed.config import SearchConfig
from heed.decoding.cancellation import Watch
from heed.inference.classifier import Classified, Classifier, embed
from heed.inference.generator import Generated, Generator
from heed.inference.translation import Translation
from heed.inference.translator import Translator
from heed.model.transformer import Transformer
from heed.serving.batcher import Job
from heed.text.tokenizer import Tokenizer

Between = Callable[[], None]
Jobs = Sequence[Job[Any]]
Pooling = Literal["mean", "first"]


@dataclass(frozen=True)
class Translating:
    """Texts to translations."""

    translator: Translator
    search: SearchConfig
    align: bool = False

    @property
    def rows(self) -> int:
        """A row for each hypothesis."""
        return self.search.beam

    @property
    def alone(self) -> bool:
        """What is drawn depends on the place."""
        return self.search.sample

    def work(self, jobs: Jobs, between: Between) -> list[Translation]:
        """The translation of each."""
        watch = _watch(jobs, between, self.search.min_length)
        return self.translator.translate_pieces(_texts(jobs), self.search, align=self.align, watch=watch)


@dataclass(frozen=True)
class Writing:
    """The beginnings of texts to texts."""

    generator: Generator
    search: SearchConfig

    @property
    def rows(self) -> int:
        """One text each."""
        return 1

    @property
    def alone(self) -> bool:
        """What is drawn depends on the place."""
        return self.search.sample

    def work(self, jobs: Jobs, between: Between) -> list[Generated]:
        """The text that each becomes."""
        texts = _texts(jobs)
        begun = max(len(ids) for ids in self.generator.tokenizer.encode(texts))  # tokens that must be said first
        watch = _watch(jobs, between, max(begun, self.search.min_length))
        return [one for (one,) in self.generator.generate(texts, self.search, watch=watch)]


@dataclass(frozen=True)
class Classifying:
    """Texts to labels."""

    classifier: Classifier
    tokenizer: Tokenizer
    rows: int = 1
    alone: bool = False

    @property
    def max_tokens(self) -> int:
        """The most that a text may have."""
        return self.classifier.max_tokens

    def work(self, jobs: Jobs, between: Between) -> list[Classified]:
        """The label of each."""
        between()
        return self.classifier.classify(_texts(jobs))


@dataclass(frozen=True)
class Embedding:
    """Texts to vectors."""

    model: Transformer
    tokenizer: Tokenizer
    max_tokens: int
    pooling: Pooling = "mean"
    rows: int = 1
    alone: bool = False

    def work(self, jobs: Jobs, between: Between) -> list[list[float]]:
        """The vector of each."""
        between()
        vectors: list[list[float]] = embed(
            self.model, self.tokenizer, _texts(jobs), self.pooling, self.max_tokens
        ).tolist()
        return vectors


def _texts(jobs: Jobs) -> list[str]:
    return [job.text for job in jobs]


def _watch(jobs: Jobs, between: Between, free_after: int) -> Watch:
    """Between the steps of a search: who has gone leaves, once the rules let a sentence end."""
    return Watch(lambda number: jobs[number].ticket.gone, between, free_after)
