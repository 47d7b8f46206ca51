"""The real command, in a process of its own."""

import os
import subprocess
import sys

ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}  # tests run side by side, and waiting threads spin


def heed(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "heed", *arguments], capture_output=True, text=True, check=False, env=ONE_THREAD
    )
