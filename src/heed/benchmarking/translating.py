"""How fast a model translates on this machine: by sentences at once, by hypotheses, by length.

Enters: a translator, and source ids. Leaves: target tokens a second and seconds a sentence. From ids to ids, search and
all, as the translator's own engine does it; cutting text into tokens is another question.
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from heed.benchmarking.limits import SearchWorkload
from heed.config import ModelConfig, SearchConfig
from heed.inference.translator import Translator
from heed.text.tokenizer import SPECIAL

TokenSequences = list[list[int]]


@dataclass(frozen=True)
class TranslationJob:
    """Sentences that are translated so many at a time. length: tokens written for each; none: until it ends."""

    sources: TokenSequences
    batch: int
    beam: int
    length: int | None = None


@dataclass(frozen=True)
class TranslationSpeed:
    """How fast a job was done; tokens include the one that ends a sentence."""

    batch: int
    beam: int
    sentences: int
    source_tokens: float  # a sentence, on average
    target_tokens: float
    tokens_per_second: float
    seconds_per_sentence: float

    def roofline_seconds_per_sentence(
        self, config: ModelConfig, operations: float, bytes_read: float, bytes_each: int = 4
    ) -> float:
        """What a machine that does and reads so many a second needs at least for a model of these settings."""
        work = SearchWorkload(self.batch, self.beam, self.source_tokens, self.target_tokens)
        return work.roofline_seconds(config, operations, bytes_read, bytes_each) / self.batch


def random_sources(count: int, length: int, vocabulary: int) -> TokenSequences:
    """Sources of so many words drawn at random, without the token that ends them."""
    draw = random.Random(0)  # noqa: S311 - nothing here is secret
    return [[draw.randrange(len(SPECIAL), vocabulary) for _ in range(length)] for _ in range(count)]


def repeat_sources(sources: TokenSequences, count: int) -> TokenSequences:
    """So many, from the first again where there are fewer; like lengths beside each other, as a translator has them."""
    return sorted(islice(cycle(sources), max(count, len(sources))), key=len, reverse=True)


def rechunk(sources: TokenSequences, length: int, count: int) -> TokenSequences:
    """The same tokens in so many sources of that length."""
    tokens = cycle([token for ids in sources for token in ids])
    return [list(islice(tokens, length)) for _ in range(count)]


def measure_translation(
    translator: Translator, jobs: Sequence[TranslationJob], rounds: int, report: Callable[[str], None] = lambda _: None
) -> list[TranslationSpeed]:
    """Each job warmed up, then all of them in turns, `rounds` times; the middle counts."""
    for number, job in enumerate(jobs, 1):
        report(f"warming up: {number} of {len(jobs)}")
        _translate(translator, job, job.sources[: job.batch])
    found: list[list[tuple[int, float]]] = [[] for _ in jobs]
    for turn in range(rounds):
        for number, (job, times) in enumerate(zip(jobs, found, strict=True), 1):
            report(f"round {turn + 1} of {rounds}: {number} of {len(jobs)}")
            began = time.perf_counter()
            written = _translate(translator, job, job.sources)
            times.append((written, time.perf_counter() - began))
    return [_timing(job, times) for job, times in zip(jobs, found, strict=True)]


def _translate(translator: Translator, job: TranslationJob, sources: TokenSequences) -> int:
    """How many target tokens a job took, end tokens included."""
    forced = {} if job.length is None else {"min_length": job.length, "max_length": job.length}
    asked = {"beam": job.beam, "nbest": 1, "sample": False, **forced}
    config = SearchConfig.model_validate(translator.search.model_dump() | asked)
    written = 0
    for first in range(0, len(sources), job.batch):
        batch = sources[first : first + job.batch]
        for best, *_ in translator.engine.search(batch, config, range(first, first + len(batch))):
            written += len(best.ids) + 1
    return written


def _timing(job: TranslationJob, times: Sequence[tuple[int, float]]) -> TranslationSpeed:
    count, seconds = len(job.sources), statistics.median(took for _, took in times)
    written = times[0][0]
    return TranslationSpeed(
        batch=job.batch,
        beam=job.beam,
        sentences=count,
        source_tokens=statistics.mean(len(ids) + 1 for ids in job.sources),
        target_tokens=written / count,
        tokens_per_second=written / seconds,
        seconds_per_sentence=seconds / count,
    )
