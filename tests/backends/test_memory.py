import platform
import subprocess
import sys

import pytest

from tests.cli.command import ONE_THREAD

CODE = """
import resource, sys, torch
from heed.backends.memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
for _ in range(3):
    torch.ones(16, 1 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(16, 1 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's memory can be kept")
def test_memory_that_is_kept_is_not_cleared_again() -> None:
    faults = []
    for how in ("keep", "let go"):
        command = [sys.executable, "-c", CODE, how]
        run = subprocess.run(command, capture_output=True, text=True, check=True, env=ONE_THREAD)
        faults.append(int(run.stdout))
    assert faults[0] < 0.5 * faults[1]
