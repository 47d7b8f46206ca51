"""Run the real `heed` command in a subprocess."""

import atexit
import os
import subprocess
import sys
import uuid
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile

from tests.cli.forked import Forked

ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}  # tests run in parallel, and waiting OpenMP threads spin
HERE = Path(__file__).parent


def heed(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run `heed` in a fork of the fork server."""
    with TemporaryFile("w+") as input_file, TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        input_file.write(stdin)
        input_file.seek(0)
        files = [file.fileno() for file in (input_file, output, errors)]
        code, _ = Forked.start(fork_server(), arguments, files, ONE_THREAD).wait()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(["heed", *arguments], code, output.read(), errors.read())


def heed_command() -> list[str]:
    """The command line, up to its arguments, of a `heed` that the fork server runs. Signals do not reach the fork."""
    return [sys.executable, "-I", "-S", str(HERE / "forked.py"), fork_server()]


@cache
def fork_server() -> str:
    """The name of this process's fork server: started for the first command, ended with this process."""
    name = f"heed-{uuid.uuid4()}"
    start = [sys.executable, str(HERE / "fork_server.py"), name]
    ending = ExitStack()
    server = ending.enter_context(
        subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ONE_THREAD)
    )
    atexit.register(ending.close)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    return name
