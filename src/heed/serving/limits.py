"""Who may come in, and how often: keys kept as hashes, and a bucket of tokens for each key or address."""

import hashlib
import hmac
import os
import secrets
import time
from collections import OrderedDict
from pathlib import Path

from heed.errors import ConfigError

_MOST_BUCKETS = 10_000  # of whoever came last; memory stays bounded whoever comes


class Keys:
    """The keys that are known, by their SHA-256. A key is 256 random bits, so a fast hash is as good as a slow one."""

    def __init__(self, digests: frozenset[str]) -> None:
        self._digests = digests

    @classmethod
    def read(cls, path: Path) -> "Keys":
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
        return cls(frozenset(line for line in lines if line))

    def __len__(self) -> int:
        return len(self._digests)

    def knows(self, key: str) -> str | None:
        """The hash of a key that is known. All are compared, each in constant time, whatever was found before."""
        digest = _digest(key)
        found = False
        for known in self._digests:
            found |= hmac.compare_digest(known, digest)
        return digest if found else None


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
