"""What a model does with a batch of texts: translate, generate, classify, embed.

Each class is a `batcher.JobType`: jobs are batched together if their types are equal, in model and settings.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from heed.backends.base import SearchMonitor
from heed.config import SearchConfig
from heed.inference.classifier import Classification, Classifier, embed
from heed.inference.generator import Generation, Generator
from heed.inference.translation import Translation
from heed.inference.translator import Translator
from heed.model.transformer import Transformer
from heed.serving.batcher import Job
from heed.text.tokenizer import Tokenizer

BetweenSteps = Callable[[], None]
Jobs = Sequence[Job[Any]]
Pooling = Literal["mean", "first"]


@dataclass(frozen=True)
class TranslationJobType:
    """Texts to translations."""

    translator: Translator
    search: SearchConfig
    align: bool = False

    @property
    def rows(self) -> int:
        """One per hypothesis."""
        return self.search.beam

    @property
    def unbatched(self) -> bool:
        """A sample depends on its row."""
        return self.search.sample

    def run(self, jobs: Jobs, between: BetweenSteps) -> list[Translation]:
        """The translation of each."""
        monitor = _monitor(jobs, between, self.search.min_length)
        return self.translator.translate_pieces(_texts(jobs), self.search, align=self.align, monitor=monitor)


@dataclass(frozen=True)
class GenerationJobType:
    """Prompts to texts that begin with them."""

    generator: Generator
    search: SearchConfig
    rows: int = 1

    @property
    def unbatched(self) -> bool:
        """A sample depends on its row."""
        return self.search.sample

    def run(self, jobs: Jobs, between: BetweenSteps) -> list[Generation]:
        """The text of each."""
        texts = _texts(jobs)
        prompt = max(len(ids) for ids in self.generator.tokenizer.encode(texts))  # tokens that are forced first
        monitor = _monitor(jobs, between, max(prompt, self.search.min_length))
        return [generated for (generated,) in self.generator.generate(texts, self.search, monitor=monitor)]


@dataclass(frozen=True)
class ClassificationJobType:
    """Texts to labels."""

    classifier: Classifier
    tokenizer: Tokenizer
    rows: int = 1
    unbatched: bool = False

    @property
    def max_tokens(self) -> int:
        """Longest text, in tokens."""
        return self.classifier.max_tokens

    def run(self, jobs: Jobs, between: BetweenSteps) -> list[Classification]:
        """The label of each."""
        between()
        return self.classifier.classify(_texts(jobs))


@dataclass(frozen=True)
class EmbeddingJobType:
    """Texts to embeddings."""

    model: Transformer
    tokenizer: Tokenizer
    max_tokens: int
    pooling: Pooling = "mean"
    rows: int = 1
    unbatched: bool = False

    def run(self, jobs: Jobs, between: BetweenSteps) -> list[list[float]]:
        """The embedding of each."""
        between()
        embeddings: list[list[float]] = embed(
            self.model, self.tokenizer, _texts(jobs), self.pooling, self.max_tokens
        ).tolist()
        return embeddings


def _texts(jobs: Jobs) -> list[str]:
    return [job.text for job in jobs]


def _monitor(jobs: Jobs, between: BetweenSteps, cancel_after: int) -> SearchMonitor:
    """Between search steps: sentences of disconnected clients leave the batch, once the search may end them."""
    return SearchMonitor(lambda number: jobs[number].cancel_token.cancelled, between, cancel_after)
