"""Timing of small pieces of work on a CPU or GPU."""

import time
from collections.abc import Callable

import torch

from heed.backends.select import default_device
from heed.claims.claim import Context


def device_of(context: Context) -> torch.device:
    """The GPU, if there is one, for the full scale; else the CPU, which the other scales are for."""
    return default_device() if context.scale == "full" else torch.device("cpu")


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """The shorter of two runs: the first may still allocate memory."""
    times = []
    for _ in range(2):
        _wait(device)
        began = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - began)
    return min(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
