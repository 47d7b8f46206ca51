"""Captures GPU work as a CUDA graph and replays it."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch


@dataclass(frozen=True)
class Captured:
    """A graph, and the work it was captured from: a graph knows where its tensors are, and does not keep them alive."""

    graph: torch.cuda.CUDAGraph
    work: Callable[[], None]

    def __call__(self) -> None:
        self.graph.replay()


def capture(work: Callable[[], None], device: torch.device, pool: Any = None, warm_up: int = 2) -> Captured:
    """A graph of what `work` launches. Work must neither read a value back nor allocate other memory each time.

    pool: whose memory it may use for temporaries; graphs that share one must not run at the same time. warm_up: calls
    before the capture, in which kernels are built and libraries take the memory they want.
    """
    side_stream, current_stream = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    side_stream.wait_stream(current_stream)
    with torch.cuda.stream(side_stream):
        for _ in range(warm_up):
            work()
    current_stream.wait_stream(side_stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        work()
    return Captured(graph, work)


def missing_for_graphs() -> str | None:
    """What our GPU kernels need that this machine lacks."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    if find_compiler() is None:
        return "Triton needs a C compiler, and there is none"
    return None


def find_compiler() -> str | None:
    """The path of the C compiler that Triton will use: $CC, gcc, cc or clang."""
    names = (os.environ.get("CC"), "gcc", "cc", "clang")
    return next((path for name in names if name and (path := shutil.which(name))), None)
