"""Runs the jobs of an experiment in processes of their own, several at a time.

Small models gain little from a second thread, so on a CPU each process has one. A GPU is shared by the processes (best
with CUDA MPS), since a small model keeps it busy for a fraction of the time only. A job that fails is reported and
stops no other job; where a process dies, its job is tried once more.
"""

import gc
import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any, TypeVar, cast

import torch

from heed.backends.select import has_gpu
from heed.claims.result import Scale
from heed.errors import HeedError

JobResult = TypeVar("JobResult")
Report = Callable[[str], None]
_MAX_GPU_JOBS = 15  # each has a CUDA context, with its memory


def default_jobs(scale: Scale) -> int:
    """How many processes to run at the same time: one per core, on a GPU machine, too, since each launches kernels."""
    if scale == "smallest":
        return 1
    return min(_MAX_GPU_JOBS, os.cpu_count() or 1) if has_gpu() else torch.get_num_threads()


class JobPool:
    """Processes that are started at the first jobs and kept for later ones: each imports torch and opens the GPU once.

    With one process, the jobs run in this one.
    """

    def __init__(self, processes: int) -> None:
        self._size = processes
        self._workers: SimpleQueue[_JobProcess] = SimpleQueue()
        self._started = 0

    def __enter__(self) -> "JobPool":
        return self

    def __exit__(self, *_error: object) -> None:
        for _ in range(self._started):
            self._workers.get().close()

    def run(
        self,
        jobs: Mapping[str, tuple[Any, ...]],
        work: Callable[..., JobResult],
        finished: Callable[[str, JobResult], None],
        report: Report,
    ) -> dict[str, str]:
        """Call `work` with the arguments of each job, the first ones first; returns the errors by name.

        finished: called with each result.
        """
        if self._size <= 1:
            return _run_here(jobs, work, finished, report)
        for _ in range(self._started, min(len(jobs), self._size)):
            self._workers.put(_JobProcess())
            self._started += 1
        errors = {}
        with ThreadPoolExecutor(self._size) as pool:
            futures = {pool.submit(self._run, work, arguments): name for name, arguments in jobs.items()}
            try:
                for future in as_completed(futures):
                    if (error := future.exception()) is None:
                        finished(futures[future], future.result())
                    else:
                        errors[futures[future]] = _reported(futures[future], error, report)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return errors

    def _run(self, work: Callable[..., JobResult], arguments: tuple[Any, ...]) -> JobResult:
        worker = self._workers.get()
        try:
            return worker.run(work, arguments)
        finally:
            self._workers.put(worker)


def run_jobs(
    jobs: Mapping[str, tuple[Any, ...]],
    work: Callable[..., JobResult],
    finished: Callable[[str, JobResult], None],
    processes: int,
    report: Report,
) -> dict[str, str]:
    """Run jobs in a pool of their own."""
    with JobPool(min(len(jobs), processes)) as pool:
        return pool.run(jobs, work, finished, report)


class _JobProcess:
    """A process that does one job after the other; a job whose process dies is tried once more, in a new one."""

    def __init__(self) -> None:
        self._process = self._started()

    def run(self, work: Callable[..., JobResult], arguments: tuple[Any, ...]) -> JobResult:
        try:
            return self._process.submit(_freeing_memory, work, arguments).result()
        except BrokenProcessPool:
            self._process = self._started()
        try:
            return self._process.submit(_freeing_memory, work, arguments).result()
        except BrokenProcessPool:
            self._process = self._started()
            raise

    def close(self) -> None:
        self._process.shutdown()

    @staticmethod
    def _started() -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_start_process)


def _run_here(
    jobs: Mapping[str, tuple[Any, ...]],
    work: Callable[..., JobResult],
    finished: Callable[[str, JobResult], None],
    report: Report,
) -> dict[str, str]:
    errors = {}
    for name, arguments in jobs.items():
        try:
            result = work(*arguments)
        except Exception as error:  # whatever it is, the other jobs go on
            errors[name] = _reported(name, error, report)
        else:
            finished(name, result)
    return errors


def _reported(name: str, error: BaseException, report: Report) -> str:
    """Report an error, with its traceback unless it is one that the user can fix; returns it in one line."""
    if not isinstance(error, Exception):
        raise error
    line = traceback.format_exception_only(error)[-1].strip()
    report(f"{name} failed: {error if isinstance(error, HeedError) else ''.join(traceback.format_exception(error))}")
    return line


def _start_process() -> None:
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A job takes minutes: without this, it would go on after the parent has been killed."""
    cast("BaseProcess", multiprocessing.parent_process()).join()
    os._exit(1)


def _freeing_memory(work: Callable[..., JobResult], arguments: tuple[Any, ...]) -> JobResult:
    """Do the work, and return the GPU memory that torch keeps, since other processes share the GPU."""
    try:
        return work(*arguments)
    finally:
        gc.collect()
        torch.cuda.empty_cache()
