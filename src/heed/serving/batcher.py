"""Dynamic batching: queued jobs to results, by the one thread that owns the models.

Enters: texts short enough to be translated at once, and calls (anything else that needs a model). Leaves: the result of
each, in its future. Queued texts are batched where they can be: same model and settings, similar lengths, up to a
budget of tokens. The shortest goes first, and waiting makes a job count as shorter, so none starves.

A long batch does not block a short one: between two search steps the thread may suspend it for a shorter batch, as long
as the long one gets half of the time. A job whose client has disconnected leaves its batch at the next step.

Knows nothing of HTTP, and imports torch only in its thread. How a text is batched never changes its translation.
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

_AGEING = 200.0  # tokens by which a second of waiting makes a job shorter
_MAX_LENGTH_RATIO = 2.0  # longest to shortest text of a batch,
_SHORT = 32  # tokens: but texts up to this length go with anything short
_PREEMPTS = 0.25  # jobs shorter than this share of a batch may preempt it
_MAX_DEPTH = 2  # preemptions within preemptions
_JOIN_SECONDS = 10.0  # for the thread to end: by then nobody waits for anything


class WorkerGoneError(Exception):
    """The thread that translates has ended."""


class _AbandonedError(Exception):
    """Nobody waits for any of a batch."""


@dataclass(eq=False)
class CancelToken:
    """A request's claim on the models; `gone` once nobody waits for its answer."""

    cancelled: bool = False


class JobType(Protocol):
    """What a model does with texts; jobs of equal types are batched. `heed.serving.jobs` has all types."""

    @property
    def rows(self) -> int:
        """Rows of a batch that a text takes."""

    @property
    def unbatched(self) -> bool:
        """Whether a text's result would depend on its row in a batch."""

    def run(self, jobs: "Sequence[Job[Any]]", between: Callable[[], None]) -> Sequence[Any]:
        """The result of each; `between` is called between two search steps, and may raise to end the batch."""


@dataclass(frozen=True, eq=False)
class Job(Generic[T]):
    """A text and its `type`; or a `call`, which is given the function to call between its steps."""

    cancel_token: CancelToken
    length: int  # in tokens, as an estimate of its cost
    type: JobType | None = None
    text: str = ""
    call: Callable[[Callable[[], None]], T] | None = None
    future: "Future[T]" = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)
    counts: bool = True  # in metrics and failures; False for the health check's own


@dataclass
class Failures:
    """Texts that failed since the last that succeeded, by no fault of the client's."""

    in_a_row: int = 0
    last: float = 0.0  # when, by time.monotonic
    error: str = ""  # the exception's class: its message may quote a text


class Batcher:
    """The thread and its queue.

    max_delay: dynamic batching delay in seconds; budget: tokens per batch, padding included.
    """

    def __init__(self, *, max_delay: float, budget: int, batching: bool = True) -> None:
        self._max_delay, self._budget, self._batching = max_delay, budget, batching
        self._waiting: list[Job[Any]] = []
        self._changed = threading.Condition()
        self._closing = self._ended = False
        self._delays = False  # only after a batch of several texts: then more are probably on their way
        self.batches = self.texts = self.tokens = 0  # finished so far
        self.waits, self.sizes = Histogram(SECONDS), Histogram(SIZES)  # queueing times, batch sizes
        self.failures = Failures()
        self._thread = threading.Thread(target=self._run, name="translator", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread still works."""
        return self._thread.is_alive() and not self._ended

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return len(self._waiting)

    def submit(self, jobs: Sequence[Job[Any]]) -> None:
        """Queue jobs; their futures will hold the results."""
        with self._changed:
            if self._ended or self._closing:
                raise WorkerGoneError("the thread that translates has ended")
            self._waiting += jobs
            self._changed.notify()

    def close(self) -> None:
        """Finish the queue, then end; a thread that hangs is left behind."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        import torch  # noqa: PLC0415 - the process that listens imports this file, and has no torch

        try:
            with torch.no_grad():
                while batch := self._next():
                    self._run_batch(batch, 0)
        except BaseException as error:
            _LOG.critical("the thread that translates has ended: %s", type(error).__name__)
        finally:
            with self._changed:
                self._ended, left, self._waiting = True, self._waiting, []
            for job in left:
                _fail(job, WorkerGoneError("the thread that translates has ended"))

    def _next(self) -> list[Job[Any]]:
        """The next batch; waits until there is one. Empty: the end."""
        with self._changed:
            while True:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                until = self._waiting[0].arrived + self._max_delay if self._waiting and self._delays else 0.0
                while not self._closing and self._room() and (left := until - time.monotonic()) > 0:
                    self._changed.wait(left)
                if (batch := self._take(math.inf)) or (self._closing and not self._waiting):
                    return batch

    def _room(self) -> bool:
        return sum(job.length for job in self._waiting) < self._budget

    def _take(self, below: float) -> list[Job[Any]]:
        """Take the most urgent batch of jobs shorter than `below` out of the queue."""
        with self._changed:
            now = time.monotonic()
            for job in self._waiting:
                if job.cancel_token.cancelled:
                    job.future.cancel()
            self._waiting = [job for job in self._waiting if not job.cancel_token.cancelled]
            ranked = sorted(
                (job for job in self._waiting if job.length < below),
                key=lambda job: job.length - _AGEING * (now - job.arrived),
            )
            batch = self._compatible(ranked)
            taken = set(batch)
            self._waiting = [job for job in self._waiting if job not in taken]
        counted = [job for job in batch if job.type is not None and job.counts]
        for job in counted:
            self.waits.note(now - job.arrived)
        if counted:
            self.sizes.note(len(counted))
        return batch

    def _compatible(self, ranked: list[Job[Any]]) -> list[Job[Any]]:
        """The first job, and those after it that fit in its batch."""
        batch = ranked[:1]
        job_type = batch[0].type if batch else None
        if job_type is None or job_type.unbatched or not self._batching:
            return batch
        longest = shortest = batch[0].length
        for job in ranked[1:]:
            widest = max(longest, job.length)
            fits = (widest + 1) * (len(batch) + 1) * job_type.rows <= self._budget
            if job.type == job_type and job.length <= max(_SHORT, _MAX_LENGTH_RATIO * shortest) and fits:
                batch.append(job)
                longest, shortest = widest, min(shortest, job.length)
        return batch

    def _run_batch(self, jobs: list[Job[Any]], depth: int) -> None:
        """Run a batch. If it fails, each job runs by itself: one bad text must not fail the others."""
        try:
            results = self._results(jobs, depth)
        except _AbandonedError:
            for job in jobs:
                job.future.cancel()
        except Exception as error:
            if len(jobs) == 1:
                self._note_failure(jobs[0], error)
                _fail(jobs[0], error)
            else:
                for job in jobs:
                    self._run_batch([job], depth)
        except BaseException:  # the thread is being ended
            for job in jobs:
                _fail(job, WorkerGoneError("the thread that translates has ended"))
            raise
        else:
            self._deliver(jobs, results)

    def _deliver(self, jobs: list[Job[Any]], results: Sequence[Any]) -> None:
        if jobs[0].type is not None and jobs[0].counts:
            self.failures = Failures()
            self._delays = len(jobs) > 1
            self.batches, self.texts = self.batches + 1, self.texts + len(jobs)
            self.tokens += sum(job.length for job in jobs)
        for job, result in zip(jobs, results, strict=True):
            if job.future.set_running_or_notify_cancel():
                job.future.set_result(result)

    def _note_failure(self, job: Job[Any], error: Exception) -> None:
        if job.type is not None and job.counts and not isinstance(error, HeedError):
            self.failures = Failures(self.failures.in_a_row + 1, time.monotonic(), type(error).__name__)

    def _results(self, jobs: list[Job[Any]], depth: int) -> Sequence[Any]:
        between, job_type, call = self._between(jobs, depth), jobs[0].type, jobs[0].call
        if job_type is not None:
            return job_type.run(jobs, between)
        return [] if call is None else [call(between)]

    def _between(self, jobs: list[Job[Any]], depth: int) -> Callable[[], None]:
        """What is done between two steps of a batch: cancel it if no client waits any more; run shorter jobs."""
        longest, started, others = max(job.length for job in jobs), time.monotonic(), 0.0
        steps = 0  # of a call: however short its estimate, after so many steps it is at least that long

        def between() -> None:
            nonlocal others, steps
            steps += jobs[0].type is None
            if all(job.cancel_token.cancelled for job in jobs):
                raise _AbandonedError
            now = time.monotonic()
            if depth < _MAX_DEPTH and self._waiting and 2 * others <= now - started:
                if shorter := self._take(_PREEMPTS * max(longest, steps)):
                    self._run_batch(shorter, depth + 1)
                others += time.monotonic() - now

        return between


def _fail(job: Job[Any], error: BaseException) -> None:
    if not job.future.done() and job.future.set_running_or_notify_cancel():
        job.future.set_exception(error)
