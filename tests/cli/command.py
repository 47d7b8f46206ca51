"""The real command, in a process of its own."""

import subprocess
import sys


def heed(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "heed", *arguments], capture_output=True, text=True, check=False)
