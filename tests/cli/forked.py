"""Run a `heed` command in the fork server: the client of `fork_server.py`, as a library and as a script.

python tests/cli/forked.py NAME ARGUMENTS…        does what `heed ARGUMENTS…` does and exits with its code
"""

import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True)
class Forked:
    """A running command."""

    process: int
    server: socket.socket

    @classmethod
    def start(
        cls,
        name: str,
        arguments: Sequence[str],
        files: Sequence[int] = (0, 1, 2),
        environment: Mapping[str, str] = os.environ,
    ) -> "Forked":
        """Have the server of this name run `heed` in this folder; files: standard input, output and error."""
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server.connect(f"\0{name}")
        command = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(environment)}
        socket.send_fds(server, [json.dumps(command).encode()], files)
        return cls(int(server.recv(100)), server)

    def ends_within(self, seconds: float) -> bool:
        """Wait up to so many seconds; returns whether the command has ended."""
        return bool(select.select([self.server], [], [], seconds)[0])

    def kill(self) -> None:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(self.process, signal.SIGKILL)

    def wait(self) -> tuple[int, int]:
        """Wait for the exit code (negative for a signal) and the peak memory in KiB."""
        with self.server:
            code, memory = json.loads(self.server.recv(100))
        return code, memory


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    code, _ = Forked.start(name, arguments).wait()
    sys.exit(code if code >= 0 else 128 - code)  # a signal, as a shell reports it
