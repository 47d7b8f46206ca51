"""Work that a GPU repeats without being told again: a CUDA graph; and what our kernels need of a machine."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from heed.backends.cpu.build import find_compiler

_BEFORE = 2  # times in which kernels are built and libraries take the memory they want


@dataclass(frozen=True)
class Repeated:
    """Work that was captured. It is held on to: a graph knows where its numbers lie, and does not keep them there."""

    graph: torch.cuda.CUDAGraph
    work: Callable[[], None]

    def __call__(self) -> None:
        """Do it again."""
        self.graph.replay()


def capture(work: Callable[[], None], device: torch.device, pool: Any = None) -> Repeated:
    """What does what `work` does, in one request. Work must not look at values, nor take other memory.

    pool: whose memory it may use for what it forgets; graphs that share one must not run at the same time.
    """
    aside, now = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    aside.wait_stream(now)
    with torch.cuda.stream(aside):
        for _ in range(_BEFORE):
            work()
    now.wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        work()
    return Repeated(graph, work)


def missing_for_capture() -> str | None:
    """What our kernels need that this machine lacks."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    if find_compiler() is None:
        return "Triton needs a C compiler, and there is none"
    return None
