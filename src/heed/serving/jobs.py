"""Types of batched jobs: translation, generation, classification and embedding.

Each class is a `batcher.JobType`: jobs are batched together if their types are equal, that is in model and settings.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from heed.backends.protocol import SearchMonitor
from heed.inference.classifier import Classification, Classifier, embed
from heed.inference.generator import Generation, Generator
from heed.inference.translation import Translation
from heed.inference.translator import Translator
from heed.model.transformer import Transformer
from heed.search_config import SearchConfig
from heed.serving.batcher import Job
from heed.text.tokenizer import Tokenizer

BetweenSteps = Callable[[], None]
Jobs = Sequence[Job[Any]]
Pooling = Literal["mean", "first"]


@dataclass(frozen=True)
class TranslationJobType:
    """Translate texts with one translator and one search configuration."""

    translator: Translator
    search: SearchConfig
    align: bool = False

    @property
    def rows_per_text(self) -> int:
        return self.search.beam

    @property
    def unbatched(self) -> bool:
        return self.search.sample

    def run(self, jobs: Jobs, between_steps: BetweenSteps) -> list[Translation]:
        monitor = _monitor(jobs, between_steps, self.search.min_length)
        return self.translator.translate_segments(_texts(jobs), self.search, align=self.align, monitor=monitor)


@dataclass(frozen=True)
class GenerationJobType:
    """Continue prompts with a language model."""

    generator: Generator
    search: SearchConfig
    rows_per_text: int = 1

    @property
    def unbatched(self) -> bool:
        return self.search.sample

    def run(self, jobs: Jobs, between_steps: BetweenSteps) -> list[Generation]:
        texts = _texts(jobs)
        prompt_length = max(len(ids) for ids in self.generator.tokenizer.encode(texts))  # forced tokens
        monitor = _monitor(jobs, between_steps, max(prompt_length, self.search.min_length))
        return [generated for (generated,) in self.generator.generate(texts, self.search, monitor=monitor)]


@dataclass(frozen=True)
class ClassificationJobType:
    """Classify texts with an encoder-only model."""

    classifier: Classifier
    tokenizer: Tokenizer
    rows_per_text: int = 1
    unbatched: bool = False

    @property
    def max_tokens(self) -> int:
        return self.classifier.max_tokens

    def run(self, jobs: Jobs, between_steps: BetweenSteps) -> list[Classification]:
        between_steps()
        return self.classifier.classify(_texts(jobs))


@dataclass(frozen=True)
class EmbeddingJobType:
    """Embed texts with the pooled hidden states of any model."""

    model: Transformer
    tokenizer: Tokenizer
    max_tokens: int
    pooling: Pooling = "mean"
    rows_per_text: int = 1
    unbatched: bool = False

    def run(self, jobs: Jobs, between_steps: BetweenSteps) -> list[list[float]]:
        between_steps()
        embeddings: list[list[float]] = embed(
            self.model, self.tokenizer, _texts(jobs), self.pooling, self.max_tokens
        ).tolist()
        return embeddings


def _texts(jobs: Jobs) -> list[str]:
    return [job.text for job in jobs]


def _monitor(jobs: Jobs, between_steps: BetweenSteps, cancel_after: int) -> SearchMonitor:
    """Texts of disconnected clients leave the batch between decoding steps, after `cancel_after` tokens."""
    return SearchMonitor(
        lambda number: jobs[number].cancel_token.cancelled, between_steps, cancel_after, every_step=False
    )
