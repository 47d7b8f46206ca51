import subprocess
import sys

import pytest
import torch

from heed.benchmarking.limits import peak_memory

CODE = """import torch
from heed.benchmarking.limits import peak_memory
cpu = torch.device("cpu")
print(peak_memory(cpu))
buffer = b"x" * 10**8
del buffer
print(peak_memory(cpu))"""
PARENT_BYTES = 10**9


@pytest.fixture(scope="module")
def child_peaks() -> list[int]:
    """Peak memory of a child process before and after it allocates 100 MB; its parent had more than 1 GB."""
    buffer = b"x" * PARENT_BYTES
    process = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    del buffer
    return [int(line) for line in process.stdout.splitlines()]


def test_the_peak_includes_memory_that_was_freed(child_peaks: list[int]) -> None:
    before, after = child_peaks
    assert 0.9e8 < after - before < 1.5e8


def test_the_peak_excludes_the_memory_of_the_parent_process(child_peaks: list[int]) -> None:
    assert child_peaks[0] < PARENT_BYTES < (peak_memory(torch.device("cpu")) or 0)
