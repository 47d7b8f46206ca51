"""API keys, rate limits (token buckets) and the bounded number of concurrent requests with their deadline.

Keys are stored as hashes. Each key or address has a token bucket. The PyPI package `limits` has no token bucket, and
its storage grows with the number of addresses (67 MB for 200,000); the buckets here are bounded at 3 MB.
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
_MAX_BUCKETS = 10_000  # the least recently used are dropped, so memory is bounded


class ApiKeys:
    """The accepted API keys, as SHA-256 digests. A key has 256 random bits, so a fast hash is enough.

    The file is reloaded when it has changed, so keys can be added and removed while the server runs. If it cannot be
    read or parsed, the previous keys stay in force and the error is logged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = _file_stamp(path)
        self._digests = _read_digests(path)

    def __len__(self) -> int:
        return len(self._digests)

    def match(self, key: str) -> str | None:
        """The digest of an accepted key, else None; always compares all keys, each in constant time."""
        self._reload()
        digest = _digest(key)
        is_known = False
        for accepted in self._digests:
            is_known |= hmac.compare_digest(accepted, digest)
        return digest if is_known else None

    def _reload(self) -> None:
        if (stamp := _file_stamp(self._path)) == self._stamp:
            return
        self._stamp = stamp
        try:
            self._digests = _read_digests(self._path)
        except ConfigError as error:
            _LOG.error("API keys not reloaded, the previous %d stay in force: %s", len(self), error)
        else:
            _LOG.warning("%s has changed: %d API keys in force", self._path, len(self))


def _file_stamp(path: Path) -> tuple[int, ...]:
    """A value that changes when the file does; empty: the file does not exist."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read_digests(path: Path) -> frozenset[str]:
    """Read a file with one digest per line; # begins a comment."""
    try:
        lines = [line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    for number, line in enumerate(lines, 1):
        if line and (len(line) != 64 or set(line) - set("0123456789abcdef")):
            raise ConfigError(
                f"{path}:{number}: expected the SHA-256 of an API key, found {len(line)} other characters; "
                f"create a key with: heed serve --new-key --keys {path}"
            )
    return frozenset(line for line in lines if line)


def add_key(path: Path) -> str:
    """Create a key, append its digest to a file that only its owner can read, and return the key itself."""
    key = secrets.token_urlsafe(32)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w", encoding="utf-8") as file:
            file.write(f"{_digest(key)}  # {time.strftime('%Y-%m-%d')}\n")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    return key


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


class RateLimiter:
    """A token bucket per caller: it holds `burst` requests and refills at `per_minute`."""

    def __init__(self, per_minute: int, burst: int) -> None:
        self._per_second, self._burst = per_minute / 60, float(burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens left, and time of the last update

    def take(self, caller: str, now: float) -> float:
        """Take one token; return 0, or the seconds until one is available."""
        left, then = self._buckets.pop(caller, (self._burst, now))
        left = min(self._burst, left + (now - then) * self._per_second)
        wait = 0.0 if left >= 1 else (1 - left) / self._per_second
        self._buckets[caller] = (left if wait else left - 1, now)
        if len(self._buckets) > _MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return wait


class DisconnectedError(Exception):
    """The client has disconnected before its response was ready."""


class Admission:
    """Admission control: a bounded number of active requests, each with a deadline; more are rejected at once."""

    def __init__(self, max_requests: int, deadline: float) -> None:
        self._max_requests, self.deadline = max_requests, deadline  # the deadline in seconds
        self.active = 0  # requests
        self.shutting_down = False  # active requests are finished, new ones rejected

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[CancelToken]:
        """Hold a slot while the block lasts; when it ends, jobs that still run for the request are cancelled."""
        if (rejection := self.rejection()) is not None:
            raise rejection
        self.active += 1
        cancel_token = CancelToken()
        try:
            yield cancel_token
        finally:
            cancel_token.cancelled = True
            self.active -= 1

    def rejection(self) -> HttpError | None:
        """The error for a new request while no slot is free; None: it can be admitted."""
        if self.shutting_down:
            return HttpError(503, "This server is shutting down", {"Retry-After": "5", "Connection": "close"})
        if self.active < self._max_requests:
            return None
        return HttpError(503, f"Too busy: {self.active} requests are queued or running", {"Retry-After": "1"})

    async def run(self, receive: Receive, handle: Callable[[CancelToken], Awaitable[T]]) -> T:
        """Run a request's handler within the deadline, and only while its client is connected."""
        async with self.slot() as cancel_token:
            handling = asyncio.ensure_future(handle(cancel_token))
            disconnecting = asyncio.ensure_future(wait_for_disconnect(receive))
            try:
                await asyncio.wait(
                    {handling, disconnecting}, timeout=self.deadline, return_when=asyncio.FIRST_COMPLETED
                )
                if handling.done():
                    return handling.result()
                if disconnecting.done():
                    raise DisconnectedError
                raise self.deadline_error()
            finally:
                handling.cancel()
                disconnecting.cancel()

    def deadline_error(self) -> HttpError:
        return HttpError(504, f"No result within {self.deadline:g} s: send less text per request, or try again later")


async def wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
