import subprocess
import sys

import torch

from heed.benchmarking.limits import peak_memory

ASK = """import torch
from heed.benchmarking.limits import peak_memory
cpu = torch.device("cpu")
print(peak_memory(cpu))"""
TAKE = "; taken = b'x' * 10**8; del taken; print(peak_memory(cpu))"


def asked(code: str) -> list[int]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.splitlines()]


def test_the_peak_is_remembered_after_memory_is_given_back() -> None:
    before, after = asked(ASK + TAKE)
    assert 0.9e8 < after - before < 1.5e8


def test_what_the_process_before_had_is_not_counted() -> None:
    much = b"x" * 10**9
    (peak,) = asked(ASK)
    assert peak < len(much) < (peak_memory(torch.device("cpu")) or 0)
