"""A real server in a subprocess, on a free port. Every wait has a time limit, and no server outlives its test."""

import os
import re
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import httpx

from tests.cli.command import fork_server
from tests.cli.forked import Forked

# No verification: there is no TLS, and loading certificates is slow. No keep-alive: it would delay a server's shutdown.
CLIENT = httpx.Client(verify=False, timeout=60, limits=httpx.Limits(max_keepalive_connections=0))  # noqa: S501
_LIMIT = 60.0  # seconds that any wait may take
_GREETING = re.compile(r"heed serves on |note: |.+: (cpu|cuda|torch|reference|ctranslate2|onnx) \w+: ")


@dataclass(frozen=True)
class Running:
    """A running server."""

    address: str
    command: Forked
    errors: BinaryIO  # a file with its standard error

    @property
    def process(self) -> int:
        return self.command.process

    @property
    def socket_address(self) -> tuple[str, int]:
        """Host and port."""
        host, port = self.address.removeprefix("http://").rsplit(":", 1)
        return host, int(port)

    def post(self, route: str, **fields: object) -> httpx.Response:
        """POST the fields as JSON."""
        return CLIENT.post(self.address + route, json=fields)

    def get(self, route: str) -> httpx.Response:
        return CLIENT.get(self.address + route)

    def end(self, sig: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        os.kill(self.process, sig)
        assert self.command.ends_within(_LIMIT)
        return self.command.wait()[0]

    def stderr_text(self) -> str:
        """What it has written to standard error so far."""
        return os.pread(self.errors.fileno(), 1_000_000, 0).decode()

    def log_lines(self) -> list[str]:
        """The lines on standard error after the greeting: without address, backends and notes."""
        return [line for line in self.stderr_text().splitlines() if not _GREETING.match(line)]


def wait_until(condition: Callable[[], bool], event: str, seconds: float = _LIMIT) -> None:
    """Wait until a condition holds, up to so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{event}: not within {seconds:g} s"
        time.sleep(0.02)


@contextmanager
def started_server(arguments: list[str], errors: int) -> Iterator[Forked]:
    """`heed serve`; killed at the end of the block if it has not been waited for."""
    with open(os.devnull) as nothing:
        forked = Forked.start(fork_server(), ["serve", *arguments], (nothing.fileno(), nothing.fileno(), errors))
    try:
        yield forked
    finally:
        if forked.server.fileno() != -1:
            forked.kill()
            assert forked.ends_within(_LIMIT)
            forked.wait()


@contextmanager
def serving(*arguments: str | Path) -> Iterator[Running]:
    """`heed serve` with these arguments, until the block ends."""
    with (
        tempfile.TemporaryFile() as errors,
        started_server(["--port", "0", *map(str, arguments)], errors.fileno()) as forked,
    ):
        running = Running("", forked, errors)
        wait_until(lambda: "\n" in running.stderr_text() or forked.ends_within(0), "a first line")
        greeting = running.stderr_text().split()
        assert greeting[:3] == ["heed", "serves", "on"], running.stderr_text()
        yield Running(greeting[3], forked, errors)


@contextmanager
def serving_with_stderr(file: int, *arguments: str | Path) -> Iterator[Running]:
    """Like `serving`, with standard error going to a file descriptor that cannot be read back."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (
        started_server(["--port", str(port), *map(str, arguments)], file) as forked,
        tempfile.TemporaryFile() as nothing,
    ):
        running = Running(f"http://127.0.0.1:{port}", forked, nothing)
        wait_until(lambda: forked.ends_within(0) or _answers(running), "an answer")
        yield running


def _answers(running: Running) -> bool:
    try:
        return running.get("/languages").status_code == 200
    except httpx.ConnectError:
        return False


def refused(*arguments: str | Path) -> tuple[int, str]:
    """`heed serve` with arguments that it must refuse: its exit code and standard error."""
    with tempfile.TemporaryFile() as errors, started_server([*map(str, arguments)], errors.fileno()) as forked:
        assert forked.ends_within(_LIMIT), "it serves"
        return forked.wait()[0], Running("", forked, errors).stderr_text()
