"""Dynamic batching: inference threads run queued jobs on the models, batching compatible texts.

Input: texts that fit the model's length limit, and calls (anything else that needs a model). Output: the result of each
job, in its future. Queued texts are batched if they have the same model and settings and similar lengths, up to a
budget of tokens. Scheduling is shortest job first with ageing, so no job starves; short texts count as equally long, so
none of them overtakes another.

A long batch does not block a short one: between two decoding steps its thread may preempt it for a shorter batch, as
long as the long one gets half of the time. A job whose client has disconnected leaves its batch at the next step.

Knows nothing of HTTP, and imports torch only in its threads. Batching never changes a translation.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from heed.errors import HeedError
from heed.serving.metrics import SECONDS, SIZES, Histogram

T = TypeVar("T")
_LOG = logging.getLogger(__name__)

_AGEING = 200.0  # tokens/s: priority is the length in tokens minus this times the queueing time
_MAX_LENGTH_RATIO = 2.0  # of the longest to the shortest text of a batch
_SHORT = 32  # tokens: texts up to this length are batched whatever their ratio, in the order in which they arrived
_PREEMPTION_RATIO = 0.25  # jobs shorter than this fraction of a running batch may preempt it, unless it is short, too
_MAX_PREEMPTIONS = 2  # nested preemptions
_JOIN_SECONDS = 10.0  # time limit for the threads to end on shutdown
_THREAD_ENDED = "an inference thread has ended"


class ThreadEndedError(Exception):
    """An inference thread has ended."""


class _AbandonedError(Exception):
    """All clients of a batch have disconnected."""


@dataclass(eq=False)
class CancelToken:
    """Shared by all jobs of a request: `cancelled` is set once its client has disconnected or its deadline passed."""

    cancelled: bool = False


class JobType(Protocol):
    """A model and its settings; jobs of equal type are batched together. `heed.serving.jobs` has all types."""

    @property
    def rows_per_text(self) -> int:
        """Rows of the batch that one text takes: the beam size."""

    @property
    def unbatched(self) -> bool:
        """True if a result depends on the row in the batch, as in sampling: then each job runs alone."""

    def run(self, jobs: "Sequence[Job[Any]]", between_steps: Callable[[], None]) -> Sequence[Any]:
        """Return the result of each job; `between_steps` is called after each decoding step and may raise to stop."""


@dataclass(frozen=True, eq=False)
class Job(Generic[T]):
    """A text and its `type`; or a `call`, which receives the function to call between its steps."""

    cancel_token: CancelToken
    length: int  # in tokens: the estimated cost
    type: JobType | None = None
    text: str = ""
    call: Callable[[Callable[[], None]], T] | None = None
    future: "Future[T]" = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)
    counted: bool = True  # in metrics and failures; False for health checks


@dataclass
class Failures:
    """Consecutive server-side failures: texts that failed since the last one that succeeded."""

    in_a_row: int = 0
    last: float = 0.0  # time.monotonic() of the last failure
    error: str = ""  # class of the exception; its message may quote a client's text


class Batcher:
    """The inference threads and their queue.

    max_delay: dynamic batching delay in seconds; budget: tokens per batch, padding included. threads: batches that run
    at the same time; with several, each computes in one thread.
    """

    def __init__(self, *, max_delay: float, budget: int, batching: bool = True, threads: int = 1) -> None:
        self._max_delay, self._budget, self._batching = max_delay, budget, batching
        self._queue: list[Job[Any]] = []
        self._changed = threading.Condition()
        self._closing = self._ended = False
        # Of each busy thread: when its batch began, or its last decoding step ended.
        self._progress: dict[int, float] = {}
        self._delays = False  # wait for a batch to fill only if the last batch had several texts
        self.batches = self.texts = self.tokens = 0  # counters of finished work
        self.queue_seconds, self.batch_sizes = Histogram(SECONDS), Histogram(SIZES)
        self.failures = Failures()
        self._threads = [threading.Thread(target=self._run, name="inference", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    @property
    def alive(self) -> bool:
        return all(thread.is_alive() for thread in self._threads) and not self._ended

    @property
    def seconds_without_progress(self) -> float:
        """How long the slowest busy thread has been in its present decoding step; 0: no thread is busy."""
        now = time.monotonic()
        return now - min(list(self._progress.values()), default=now)

    @property
    def queued(self) -> int:
        return len(self._queue)

    def submit(self, jobs: Sequence[Job[Any]]) -> None:
        """Queue jobs; their futures will hold the results."""
        with self._changed:
            if self._ended or self._closing:
                raise ThreadEndedError(_THREAD_ENDED)
            self._queue += jobs
            self._changed.notify_all()

    def close(self) -> None:
        """Finish the queued jobs, then stop; a thread that hangs is abandoned."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        until = time.monotonic() + _JOIN_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _run(self) -> None:
        import torch  # noqa: PLC0415 - the HTTP process imports this module without torch

        if len(self._threads) > 1:
            torch.set_num_threads(1)  # in this thread, and in those that are started later
        try:
            with torch.no_grad():
                while batch := self._wait_for_batch():
                    self._run_batch(batch, 0)
                    del self._progress[threading.get_ident()]
        except BaseException as error:
            _LOG.critical("%s: %s", _THREAD_ENDED, type(error).__name__)
        finally:
            with self._changed:
                self._ended, remaining, self._queue = True, self._queue, []
                self._changed.notify_all()
            for job in remaining:
                _fail(job, ThreadEndedError(_THREAD_ENDED))

    def _wait_for_batch(self) -> list[Job[Any]]:
        """Block until there is a batch; empty: the batcher is closing, or another of its threads has ended."""
        with self._changed:
            while not self._ended:
                while not self._queue and not self._closing and not self._ended:
                    self._changed.wait()
                until = self._queue[0].arrived + self._max_delay if self._queue and self._delays else 0.0
                while not self._closing and self._has_capacity() and (left := until - time.monotonic()) > 0:
                    self._changed.wait(left)
                if batch := self._take_batch(math.inf):
                    self._progress[threading.get_ident()] = time.monotonic()
                    return batch
                if self._closing and not self._queue:
                    return []
            return []

    def _has_capacity(self) -> bool:
        return sum(job.length for job in self._queue) < self._budget

    def _take_batch(self, shorter_than: float) -> list[Job[Any]]:
        """Dequeue the highest-priority batch of jobs shorter than this many tokens."""
        with self._changed:
            now = time.monotonic()
            for job in self._queue:
                if job.cancel_token.cancelled:
                    job.future.cancel()
            self._queue = [job for job in self._queue if not job.cancel_token.cancelled]
            ranked = sorted(
                (job for job in self._queue if job.length < shorter_than),
                key=lambda job: max(job.length, _SHORT) - _AGEING * (now - job.arrived),
            )
            batch = self._compatible(ranked, math.ceil(len(ranked) / len(self._threads)))
            taken = set(batch)
            self._queue = [job for job in self._queue if job not in taken]
            counted = [job for job in batch if job.type is not None and job.counted]
            for job in counted:
                self.queue_seconds.observe(now - job.arrived)
            if counted:
                self.batch_sizes.observe(len(counted))
        return batch

    def _compatible(self, ranked: list[Job[Any]], most: int) -> list[Job[Any]]:
        """The first job, and the later ones that fit in its batch, at most so many: the threads share the jobs."""
        batch = ranked[:1]
        job_type = batch[0].type if batch else None
        if job_type is None or job_type.unbatched or not self._batching:
            return batch
        longest = shortest = batch[0].length
        for job in ranked[1:]:
            widest = max(longest, job.length)
            fits = (widest + 1) * (len(batch) + 1) * job_type.rows_per_text <= self._budget
            if len(batch) == most:
                break
            if job.type == job_type and job.length <= max(_SHORT, _MAX_LENGTH_RATIO * shortest) and fits:
                batch.append(job)
                longest, shortest = widest, min(shortest, job.length)
        return batch

    def _run_batch(self, jobs: list[Job[Any]], depth: int) -> None:
        """Run a batch; if it fails, run each job alone, so that one bad text does not fail the others."""
        try:
            results = self._run_jobs(jobs, depth)
        except _AbandonedError:
            for job in jobs:
                job.future.cancel()
        except Exception as error:
            if len(jobs) == 1:
                self._count_failure(jobs[0], error)
                _fail(jobs[0], error)
            else:
                for job in jobs:
                    self._run_batch([job], depth)
        except BaseException:  # the thread is being killed
            for job in jobs:
                _fail(job, ThreadEndedError(_THREAD_ENDED))
            raise
        else:
            self._deliver(jobs, results)

    def _deliver(self, jobs: list[Job[Any]], results: Sequence[Any]) -> None:
        if jobs[0].type is not None and jobs[0].counted:
            with self._changed:
                self.failures = Failures()
                self._delays = len(jobs) > 1
                self.batches, self.texts = self.batches + 1, self.texts + len(jobs)
                self.tokens += sum(job.length for job in jobs)
        for job, result in zip(jobs, results, strict=True):
            if job.future.set_running_or_notify_cancel():
                job.future.set_result(result)

    def _count_failure(self, job: Job[Any], error: Exception) -> None:
        if job.type is not None and job.counted and not isinstance(error, HeedError):
            with self._changed:
                self.failures = Failures(self.failures.in_a_row + 1, time.monotonic(), type(error).__name__)

    def _run_jobs(self, jobs: list[Job[Any]], depth: int) -> Sequence[Any]:
        between_steps, job_type, call = self._make_hook(jobs, depth), jobs[0].type, jobs[0].call
        if job_type is not None:
            return job_type.run(jobs, between_steps)
        return [] if call is None else [call(between_steps)]

    def _make_hook(self, jobs: list[Job[Any]], depth: int) -> Callable[[], None]:
        """The hook between two decoding steps: stop the batch if all its jobs are cancelled; run shorter jobs first."""
        longest, started, preempted = max(job.length for job in jobs), time.monotonic(), 0.0
        steps = 0  # of a call: its length is at least this, whatever was estimated

        def between_steps() -> None:
            nonlocal preempted, steps
            steps += jobs[0].type is None
            if all(job.cancel_token.cancelled for job in jobs):
                raise _AbandonedError
            self._progress[threading.get_ident()] = now = time.monotonic()
            length = max(longest, steps)
            if depth < _MAX_PREEMPTIONS and length > _SHORT and self._queue and 2 * preempted <= now - started:
                if shorter := self._take_batch(_PREEMPTION_RATIO * length):
                    self._run_batch(shorter, depth + 1)
                preempted += time.monotonic() - now

        return between_steps


def _fail(job: Job[Any], error: BaseException) -> None:
    if not job.future.done() and job.future.set_running_or_notify_cancel():
        job.future.set_exception(error)
