import platform
import subprocess
import sys

import pytest

from tests.cli.command import ONE_THREAD

CODE = """
import resource, sys, torch
from heed.backends.memory import keep_freed_memory

def page_faults():
    for _ in range(3):
        torch.ones(16, 1 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(16, 1 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

by_default = page_faults()
assert keep_freed_memory()
print(by_default, page_faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's memory can be kept")
def test_kept_memory_causes_few_page_faults() -> None:
    run = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, env=ONE_THREAD)
    by_default, kept = map(int, run.stdout.split())
    assert kept < 0.5 * by_default
