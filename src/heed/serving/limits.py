"""Who is served, how often, and how much at a time: API keys, rates of requests, places for requests in work.

Keys are kept as hashes. The rate of each key or address is a token bucket: a burst, then a steady rate. The library
`limits` has no token bucket, and its storage grows with the number of addresses: 67 MB for 200,000 of them, where the
buckets here stop at 3 MB.
"""

import asyncio
import hashlib
import hmac
import logging
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from starlette.types import Receive

from heed.errors import ConfigError
from heed.serving.batcher import CancelToken
from heed.serving.http_errors import HttpError

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_MAX_BUCKETS = 10_000  # least recently used dropped: memory stays bounded whoever comes


class ApiKeys:
    """The known keys, as SHA-256 digests. A key is 256 random bits, so a fast hash is as good as a slow one.

    Keys can be added and removed while the server runs: the file is read again when it has changed. If it cannot be
    read then, or holds something else, the keys stay as they were, and the log says so.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = _stamp(path)
        self._digests = _read_digests(path)

    def __len__(self) -> int:
        return len(self._digests)

    def knows(self, key: str) -> str | None:
        """The digest of a known key. All are compared, each in constant time, whether or not one matched before."""
        self._read_again()
        digest = _digest(key)
        found = False
        for known in self._digests:
            found |= hmac.compare_digest(known, digest)
        return digest if found else None

    def _read_again(self) -> None:
        if (stamp := _stamp(self._path)) == self._stamp:
            return
        self._stamp = stamp
        try:
            self._digests = _read_digests(self._path)
        except ConfigError as error:
            _LOG.error("the keys have not been read again, %d stay in force: %s", len(self), error)
        else:
            _LOG.warning("%s has changed: %d keys are in force now", self._path, len(self))


def _stamp(path: Path) -> tuple[int, ...]:
    """A value that changes when the file does; empty: it is not there."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read_digests(path: Path) -> frozenset[str]:
    """A file with one digest per line; # begins a comment."""
    try:
        lines = [line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    for number, line in enumerate(lines, 1):
        if line and (len(line) != 64 or set(line) - set("0123456789abcdef")):
            raise ConfigError(
                f"{path}:{number}: expected the SHA-256 of a key, found {len(line)} characters that are not one; "
                f"make a key with: heed serve --new-key --keys {path}"
            )
    return frozenset(line for line in lines if line)


def add_key(path: Path) -> str:
    """Make a key, append its digest to a file that only its owner can read, and return it: it is stored nowhere."""
    key = secrets.token_urlsafe(32)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w", encoding="utf-8") as file:
            file.write(f"{_digest(key)}  # {time.strftime('%Y-%m-%d')}\n")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    return key


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


class Rates:
    """A token bucket per caller: it holds `burst` requests and refills at `per_minute`."""

    def __init__(self, per_minute: int, burst: int) -> None:
        self._per_second, self._burst = per_minute / 60, float(burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens left, and when

    def take(self, caller: str, now: float) -> float:
        """Spend one token; 0, or the seconds until there will be one."""
        left, then = self._buckets.pop(caller, (self._burst, now))
        left = min(self._burst, left + (now - then) * self._per_second)
        wait = 0.0 if left >= 1 else (1 - left) / self._per_second
        self._buckets[caller] = (left if wait else left - 1, now)
        if len(self._buckets) > _MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return wait


class DisconnectedError(Exception):
    """The client has disconnected: there is nobody to answer."""


class Admission:
    """A bounded number of requests in work, each with a deadline; more are refused at once."""

    def __init__(self, places: int, deadline: float) -> None:
        self._places, self.deadline = places, deadline  # the deadline in seconds
        self.taken = 0
        self.closed = False  # the server is ending: requests in work are finished, new ones refused

    @asynccontextmanager
    async def place(self) -> AsyncIterator[CancelToken]:
        """Hold a slot while the block lasts; when it ends, jobs that still run for the request are cancelled."""
        if (rejection := self.rejection()) is not None:
            raise rejection
        self.taken += 1
        cancel_token = CancelToken()
        try:
            yield cancel_token
        finally:
            cancel_token.cancelled = True
            self.taken -= 1

    def rejection(self) -> HttpError | None:
        """The refusal while there is no place."""
        if self.closed:
            return HttpError(503, "This server is shutting down", {"Retry-After": "5", "Connection": "close"})
        if self.taken < self._places:
            return None
        return HttpError(503, f"Too busy: {self.taken} requests are waiting already", {"Retry-After": "1"})

    async def work(self, receive: Receive, do: Callable[[CancelToken], Awaitable[T]]) -> T:
        """Run `do` for a request: within the deadline, and only while its client is connected."""
        async with self.place() as cancel_token:
            working = asyncio.ensure_future(do(cancel_token))
            leaving = asyncio.ensure_future(disconnected(receive))
            try:
                await asyncio.wait({working, leaving}, timeout=self.deadline, return_when=asyncio.FIRST_COMPLETED)
                if working.done():
                    return working.result()
                if leaving.done():
                    raise DisconnectedError
                raise self.late()
            finally:
                working.cancel()
                leaving.cancel()

    def late(self) -> HttpError:
        """The answer after the deadline."""
        return HttpError(504, f"No answer within {self.deadline:g} s: send less text at a time, or try later")


async def disconnected(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
