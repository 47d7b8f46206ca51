"""The real command, in a process of its own."""

import os
import subprocess
import sys

ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}  # tests run side by side, and waiting threads spin


def heed(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "heed", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, env=ONE_THREAD)
