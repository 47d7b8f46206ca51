"""Time and memory of small pieces of work on a CPU or GPU."""

import os
import time
from collections.abc import Callable
from itertools import accumulate

import torch
from torch.profiler import ProfilerActivity, profile

from heed.backends.select import default_device
from heed.claims.claim import Context


def device_of(context: Context) -> torch.device:
    """The GPU, if there is one, for the full scale; else the CPU, which the other scales are for."""
    return default_device() if context.scale == "full" else torch.device("cpu")


def seconds(work: Callable[[], object], device: torch.device, runs: int = 2) -> float:
    """The time of the shortest of so many runs: the first may still allocate memory."""
    times = []
    for _ in range(runs):
        _wait(device)
        began = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - began)
    return min(times)


def peak_memory(work: Callable[[], object], device: torch.device) -> int:
    """The most bytes that tensors allocated by the work take at the same time."""
    if device.type == "cuda":
        _wait(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        _wait(device)
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's messages about itself
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=False) as profiler:
        work()
    events = profiler.profiler.kineto_results.events()
    changes = sorted((event for event in events if event.name() == "[memory]"), key=lambda event: event.start_ns())
    return max(accumulate((event.nbytes() for event in changes), initial=0))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
