"""Measures translation speed on this machine: target tokens/s by batch size, beam size and sentence length.

Enters: a translator, and source ids. Leaves: target tokens/s and seconds per sentence, from ids to ids: encoder and
search of the translator's engine, without tokenisation.
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from heed.benchmarking.limits import SearchWorkload
from heed.config import ModelConfig
from heed.inference.translator import Translator
from heed.search_config import SearchConfig
from heed.text.tokenizer import SPECIAL

TokenSequences = list[list[int]]  # ids without special tokens, one list per sentence


@dataclass(frozen=True)
class TranslationJob:
    """Sentences to translate, and the batch and beam size to translate them with."""

    sources: TokenSequences
    batch: int
    beam: int
    length: int | None = None  # forces translations of this many tokens; None: until EOS


@dataclass(frozen=True)
class TranslationSpeed:
    """The measured speed of a job; tokens include EOS."""

    batch: int
    beam: int
    sentences: int
    source_tokens: float  # mean per sentence
    target_tokens: float  # mean per sentence
    tokens_per_second: float
    seconds_per_sentence: float

    def roofline_seconds_per_sentence(
        self, config: ModelConfig, throughput: float, bandwidth: float, bytes_per_weight: int = 4
    ) -> float:
        """A lower bound for a model with these settings, given the machine's operations/s and bytes/s."""
        work = SearchWorkload(self.batch, self.beam, self.source_tokens, self.target_tokens)
        return work.roofline_seconds(config, throughput, bandwidth, bytes_per_weight) / self.batch


def random_sources(count: int, length: int, vocab_size: int) -> TokenSequences:
    """Sentences of random tokens, always the same."""
    draw = random.Random(0)  # noqa: S311 - nothing here is secret
    return [[draw.randrange(len(SPECIAL), vocab_size) for _ in range(length)] for _ in range(count)]


def repeat_sources(sources: TokenSequences, count: int) -> TokenSequences:
    """At least `count` sentences, repeated where there are fewer, and sorted by length as a translator sorts them."""
    return sorted(islice(cycle(sources), max(count, len(sources))), key=len, reverse=True)


def rechunk(sources: TokenSequences, length: int, count: int) -> TokenSequences:
    """The same tokens, split into `count` sentences of this length."""
    tokens = cycle([token for ids in sources for token in ids])
    return [list(islice(tokens, length)) for _ in range(count)]


def measure_translation(
    translator: Translator, jobs: Sequence[TranslationJob], rounds: int, report: Callable[[str], None] = lambda _: None
) -> list[TranslationSpeed]:
    """Warm up each job, then run all of them `rounds` times in turn; the median time of a job counts."""
    for number, job in enumerate(jobs, 1):
        report(f"warming up: {number} of {len(jobs)}")
        _translate(translator, job, job.sources[: job.batch])
    seconds: list[list[float]] = [[] for _ in jobs]
    tokens = [0] * len(jobs)
    for round_ in range(rounds):
        for index, job in enumerate(jobs):
            report(f"round {round_ + 1} of {rounds}: {index + 1} of {len(jobs)}")
            began = time.perf_counter()
            tokens[index] = _translate(translator, job, job.sources)
            seconds[index].append(time.perf_counter() - began)
    return [_speed(job, tokens[index], statistics.median(seconds[index])) for index, job in enumerate(jobs)]


def _translate(translator: Translator, job: TranslationJob, sources: TokenSequences) -> int:
    """Translate the sources; returns the number of target tokens, EOS included."""
    length = {} if job.length is None else {"min_length": job.length, "max_length": job.length}
    settings = {"beam": job.beam, "nbest": 1, "sample": False, **length}
    config = SearchConfig.model_validate(translator.search.model_dump() | settings)
    tokens = 0
    for first in range(0, len(sources), job.batch):
        batch = sources[first : first + job.batch]
        for best, *_ in translator.engine.search(batch, config, range(first, first + len(batch))):
            tokens += len(best.ids) + 1
    return tokens


def _speed(job: TranslationJob, tokens: int, seconds: float) -> TranslationSpeed:
    count = len(job.sources)
    return TranslationSpeed(
        batch=job.batch,
        beam=job.beam,
        sentences=count,
        source_tokens=statistics.mean(len(ids) + 1 for ids in job.sources),
        target_tokens=tokens / count,
        tokens_per_second=tokens / seconds,
        seconds_per_sentence=seconds / count,
    )
