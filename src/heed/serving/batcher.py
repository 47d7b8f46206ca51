"""Texts that wait to translations, many at a time: the one thread that owns the models.

Enters: pieces of text short enough to be translated at once, and errands (anything else that needs a model). Leaves:
what came of each, in its future. What waits is translated together where it can be: the same model and settings, like
lengths, up to a budget of tokens. The shortest goes first, and waiting makes a job shorter, so none waits for ever.

A batch is not blocked by a longer one: between two steps of a search the thread may put it aside for a shorter batch,
as long as the longer one gets half of the time. What nobody waits for any more leaves its batch at the next step.

Knows nothing of HTTP. How a text is batched never changes which translation is looked for.
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
from heed.serving.logs import NAME
from heed.serving.metrics import SECONDS, SIZES, Histogram

T = TypeVar("T")
_LOG = logging.getLogger(NAME)

_AGEING = 200.0  # tokens by which a second of waiting makes a job shorter
_ALIKE = 2.0  # a batch holds nothing longer than this many times its shortest,
_SHORT = 32  # but what is no longer than this goes with anything short
_SHORTER = 0.25  # what may interrupt a batch: jobs shorter than this share of it
_DEPTH = 2  # interruptions within interruptions
_LAST = 10.0  # seconds for the thread to end: by then nobody waits for anything


class WorkerGoneError(Exception):
    """The thread that translates has ended."""


class _AbandonedError(Exception):
    """Nobody waits for any of a batch."""


@dataclass(eq=False)
class Ticket:
    """A request's claim on the models; `gone` once nobody waits for its answer."""

    gone: bool = False


class Kind(Protocol):
    """What is done with a text. Texts of equal kinds are done together; `heed.serving.kinds` has them all."""

    @property
    def rows(self) -> int:
        """Rows of a batch that a text takes."""

    @property
    def alone(self) -> bool:
        """Whether what becomes of a text would depend on its place in a batch."""

    def work(self, jobs: "Sequence[Job[Any]]", between: Callable[[], None]) -> Sequence[Any]:
        """What becomes of each; `between` is called between two steps, and may raise to end it all."""


@dataclass(frozen=True, eq=False)
class Job(Generic[T]):
    """A piece of text, where there is a `kind`; else an errand, which is given what to call between its steps."""

    ticket: Ticket
    length: int  # in tokens: how long it will take, more or less
    kind: Kind | None = None
    text: str = ""
    errand: Callable[[Callable[[], None]], T] | None = None
    future: "Future[T]" = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)
    counts: bool = True  # among what was done, and what failed; not so a job that only tries a model


@dataclass
class Failures:
    """Texts that failed, for no fault of their own, since one was done."""

    in_a_row: int = 0
    last: float = 0.0  # when, by time.monotonic
    error: str = ""  # the name of what was raised: its message may quote a text


class Batcher:
    """The thread and what waits for it."""

    def __init__(self, *, patience: float, budget: int, batching: bool = True) -> None:
        self._patience, self._budget, self._batching = patience, budget, batching
        self._waiting: list[Job[Any]] = []
        self._changed = threading.Condition()
        self._closing = self._ended = False
        self._company = False  # whether the last batch had several texts: then more are probably on their way
        self.batches = self.texts = self.tokens = 0  # done so far
        self.waits, self.sizes = Histogram(SECONDS), Histogram(SIZES)  # of texts in a queue, of batches
        self.failures = Failures()
        self._thread = threading.Thread(target=self._run, name="translator", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread still works."""
        return self._thread.is_alive() and not self._ended

    @property
    def waiting(self) -> int:
        """Jobs that have not begun."""
        return len(self._waiting)

    def submit(self, jobs: Sequence[Job[Any]]) -> None:
        """Have jobs done. Their futures say what came of them."""
        with self._changed:
            if self._ended or self._closing:
                raise WorkerGoneError("the thread that translates has ended")
            self._waiting += jobs
            self._changed.notify()

    def close(self) -> None:
        """Finish what waits, then end; a thread that hangs is left behind."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(_LAST)

    def _run(self) -> None:
        import torch  # noqa: PLC0415 - the server's own process knows of this file, and has no torch

        try:
            with torch.no_grad():
                while batch := self._next():
                    self._work(batch, 0)
        except BaseException as error:
            _LOG.critical("the thread that translates has ended: %s", type(error).__name__)
        finally:
            with self._changed:
                self._ended, left, self._waiting = True, self._waiting, []
            for job in left:
                _fail(job, WorkerGoneError("the thread that translates has ended"))

    def _next(self) -> list[Job[Any]]:
        """What to do now; waits until there is something. Nothing: the end."""
        with self._changed:
            while True:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                until = self._waiting[0].arrived + self._patience if self._waiting and self._company else 0.0
                while not self._closing and self._room() and (left := until - time.monotonic()) > 0:
                    self._changed.wait(left)
                if (batch := self._take(math.inf)) or (self._closing and not self._waiting):
                    return batch

    def _room(self) -> bool:
        return sum(job.length for job in self._waiting) < self._budget

    def _take(self, below: float) -> list[Job[Any]]:
        """The batch that should be done first, of jobs shorter than `below`; its jobs wait no longer."""
        with self._changed:
            now = time.monotonic()
            for job in self._waiting:
                if job.ticket.gone:
                    job.future.cancel()
            self._waiting = [job for job in self._waiting if not job.ticket.gone]
            ranked = sorted(
                (job for job in self._waiting if job.length < below),
                key=lambda job: job.length - _AGEING * (now - job.arrived),
            )
            batch = self._together(ranked)
            taken = set(batch)
            self._waiting = [job for job in self._waiting if job not in taken]
        counted = [job for job in batch if job.kind is not None and job.counts]
        for job in counted:
            self.waits.note(now - job.arrived)
        if counted:
            self.sizes.note(len(counted))
        return batch

    def _together(self, ranked: list[Job[Any]]) -> list[Job[Any]]:
        """The first, and those after it that go with it."""
        batch = ranked[:1]
        kind = batch[0].kind if batch else None
        if kind is None or kind.alone or not self._batching:  # what is drawn depends on the place in a batch
            return batch
        longest = shortest = batch[0].length
        for job in ranked[1:]:
            widest = max(longest, job.length)
            fits = (widest + 1) * (len(batch) + 1) * kind.rows <= self._budget
            if job.kind == kind and job.length <= max(_SHORT, _ALIKE * shortest) and fits:
                batch.append(job)
                longest, shortest = widest, min(shortest, job.length)
        return batch

    def _work(self, jobs: list[Job[Any]], depth: int) -> None:
        """Do some jobs now. A text that cannot be translated must not spoil those it came with."""
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
                    self._work([job], depth)
        except BaseException:  # the thread is being ended
            for job in jobs:
                _fail(job, WorkerGoneError("the thread that translates has ended"))
            raise
        else:
            self._deliver(jobs, results)

    def _deliver(self, jobs: list[Job[Any]], results: Sequence[Any]) -> None:
        if jobs[0].kind is not None and jobs[0].counts:
            self.failures = Failures()
            self._company = len(jobs) > 1
            self.batches, self.texts = self.batches + 1, self.texts + len(jobs)
            self.tokens += sum(job.length for job in jobs)
        for job, result in zip(jobs, results, strict=True):
            if job.future.set_running_or_notify_cancel():
                job.future.set_result(result)

    def _note_failure(self, job: Job[Any], error: Exception) -> None:
        if job.kind is not None and job.counts and not isinstance(error, HeedError):
            self.failures = Failures(self.failures.in_a_row + 1, time.monotonic(), type(error).__name__)

    def _results(self, jobs: list[Job[Any]], depth: int) -> Sequence[Any]:
        between, kind = self._between(jobs, depth), jobs[0].kind
        if kind is not None:
            return kind.work(jobs, between)
        errand = jobs[0].errand
        return [] if errand is None else [errand(between)]

    def _between(self, jobs: list[Job[Any]], depth: int) -> Callable[[], None]:
        """What happens between two steps of these jobs: an end, if nobody waits; shorter jobs, if some do."""
        longest, started, others = max(job.length for job in jobs), time.monotonic(), 0.0
        steps = 0  # whatever an errand's length was taken for: after so many steps it is at least that long

        def between() -> None:
            nonlocal others, steps
            steps += jobs[0].kind is None
            if all(job.ticket.gone for job in jobs):
                raise _AbandonedError
            now = time.monotonic()
            if depth < _DEPTH and self._waiting and 2 * others <= now - started:
                if shorter := self._take(_SHORTER * max(longest, steps)):
                    self._work(shorter, depth + 1)
                others += time.monotonic() - now

        return between


def _fail(job: Job[Any], error: BaseException) -> None:
    if not job.future.done() and job.future.set_running_or_notify_cancel():
        job.future.set_exception(error)
