"""Who may come in, and how often: keys kept as hashes, and a bucket of tokens for each key or address."""

import hashlib
import hmac
import logging
import os
import secrets
import time
from collections import OrderedDict
from pathlib import Path

from heed.errors import ConfigError
from heed.serving.logs import NAME

_LOG = logging.getLogger(NAME)

_MOST_BUCKETS = 10_000  # of whoever came last; memory stays bounded whoever comes


class Keys:
    """The keys that are known, by their SHA-256. A key is 256 random bits, so a fast hash is as good as a slow one.

    Keys can be added and taken away while the server runs: the file is read again when it has changed. One that cannot
    be read then, or that holds something else, leaves the keys as they were, and the log says so.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = _stamp(path)
        self._digests = _read_digests(path)

    def __len__(self) -> int:
        return len(self._digests)

    def knows(self, key: str) -> str | None:
        """The hash of a key that is known. All are compared, each in constant time, whatever was found before."""
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
    """What changes when a file does; nothing: it is not there."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read_digests(path: Path) -> frozenset[str]:
    """A file with one hash a line; what follows # is a remark."""
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
    """Make a key, add its hash to a file that only its owner can read, and return it: it is kept nowhere else."""
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
    """A bucket for each caller: it holds `burst` requests and fills up again over time."""

    def __init__(self, per_minute: int, burst: int) -> None:
        self._per_second, self._burst = per_minute / 60, float(burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what was left, and when

    def take(self, caller: str, now: float) -> float:
        """Take one request out; 0, or the seconds until there will be one."""
        left, then = self._buckets.pop(caller, (self._burst, now))
        left = min(self._burst, left + (now - then) * self._per_second)
        wait = 0.0 if left >= 1 else (1 - left) / self._per_second
        self._buckets[caller] = (left if wait else left - 1, now)
        if len(self._buckets) > _MOST_BUCKETS:
            self._buckets.popitem(last=False)
        return wait
