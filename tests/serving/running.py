"""A real server, in a process of its own, on a port of its own."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import httpx

from tests.cli.command import fork_server
from tests.cli.forked import Forked

CLIENT = httpx.Client(verify=False, timeout=60)  # noqa: S501 - there is no TLS here, and preparing for it takes long


@dataclass(frozen=True)
class Running:
    """A server under way."""

    address: str
    process: int
    command: Forked
    errors: TextIO  # what it says on standard error, after its first line

    def post(self, route: str, **fields: object) -> httpx.Response:
        """Fields as JSON."""
        return CLIENT.post(self.address + route, json=fields)

    def get(self, route: str) -> httpx.Response:
        return CLIENT.get(self.address + route)

    def end(self, sig: int = signal.SIGTERM) -> int:
        """Its exit code."""
        os.kill(self.process, sig)
        assert self.command.ends_within(60)
        return self.command.wait()[0]


@contextmanager
def serving(*arguments: str | Path) -> Iterator[Running]:
    """`heed serve` with these arguments, until the block ends."""
    reading, writing = os.pipe()
    with open(os.devnull) as nothing:
        files = (nothing.fileno(), nothing.fileno(), writing)
        forked = Forked.start(fork_server(), ["serve", "--port", "0", *map(str, arguments)], files)
    os.close(writing)
    with os.fdopen(reading) as errors:
        said = errors.readline().split()
        assert said[:3] == ["heed", "serves", "on"], (said, errors.read())
        try:
            yield Running(said[3], forked.process, forked, errors)
        finally:
            if forked.server.fileno() != -1:  # it has not been waited for
                forked.kill()
                forked.wait()
