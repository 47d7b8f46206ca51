"""The process that listens: uvicorn, with an orderly end and answers in JSON even to what is not HTTP.

SIGTERM or Ctrl-C: `/health/ready` says no, new work is refused, what is in work is finished, then the door is closed. A
second signal ends at once.
"""

import contextlib
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Protocol

import uvicorn
from starlette.types import ASGIApp

from heed.errors import ConfigError
from heed.serving.config import ServeConfig
from heed.serving.logs import only_our_own
from heed.serving.protocol import protocol

_LAST_CALLS = 0.3  # seconds in which those who come after the signal are told so;
_BACKLOG = 2048  # connections that the system keeps for us
_SPARE = 32  # file descriptors for all that is not a connection,
_AT_ONCE = 2  # connections taken in at once among them: others' descriptors are free only some turns of the loop later
_KNOWN = 2.0  # so many for those who are connected already: what they have just sent would be lost


class Gate(Protocol):
    """What the server knows of the requests in work; `closed` is its own to set."""

    taken: int
    closed: bool

    @property
    def deadline(self) -> float:
        """Seconds that a request may take."""


def bind(config: ServeConfig) -> socket.socket:
    """Take the port, or say why not, before anything slow is done."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY on no other
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((config.host, config.port))
    except OSError as error:
        listening.close()
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot listen on {config.host}:{config.port}: {reason}; choose another --port") from None
    return listening


def connection_limit(wanted: int) -> int:
    """How many connections there can be: as many as are wanted, if the system's limit on open files leaves room.

    Without room for one more file the system lets nobody in at all, and idle connections would keep everyone out.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _SPARE
    if soft < needed and soft != resource.RLIM_INFINITY:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < 2 * _SPARE:
            raise ConfigError(f"only {soft} files may be open at a time: allow at least {2 * _SPARE} with ulimit -n")
        return min(wanted, soft - _SPARE)
    return wanted


def run(app: ASGIApp, gate: Gate, config: ServeConfig, listening: socket.socket, ready: Callable[[], None]) -> int:
    """Serve until a signal; the exit code."""
    settings = uvicorn.Config(
        app,
        http=protocol(config.read_timeout, connection_limit(config.connections)),
        loop="asyncio",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,  # it would hold addresses, and texts where they are in them
        proxy_headers=False,  # anyone can write those
        server_header=False,
        h11_max_incomplete_event_size=config.header_bytes,
        timeout_keep_alive=75,  # longer than clients keep a connection: who closes first should be the one who asks
        timeout_graceful_shutdown=int(config.deadline) + 1,
        backlog=_AT_ONCE,
    )
    server = _Server(settings, gate, ready)
    with only_our_own():
        server.run(sockets=[listening])
    return 130 if server.signals[:1] == [signal.SIGINT] else 0


class _Server(uvicorn.Server):
    """uvicorn that finishes before it stops listening."""

    def __init__(self, config: uvicorn.Config, gate: Gate, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._gate, self._ready = gate, ready
        self._since = 0.0
        self.signals: list[int] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or []:
            listening.listen(_BACKLOG)
        with contextlib.suppress(OSError):  # nobody reads it, or it goes to a disk that is full: not worth an end
            self._ready()

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether to end now."""
        if not self.signals:
            return await super().on_tick(counter)
        expected = self.server_state.connections and self.signals[0] == signal.SIGTERM
        patience = _KNOWN if expected else _LAST_CALLS
        if self._gate.taken:
            patience += self._gate.deadline  # nothing takes longer, or if it does, it is not waited for
        return self.force_exit or time.monotonic() - self._since > patience

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """A signal has come."""
        self.signals.append(sig)
        self._gate.closed = True
        if len(self.signals) > 1:
            self.should_exit = self.force_exit = True
        self._since = time.monotonic()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals ourselves, and do not raise them again afterwards: an orderly end is exit code 0."""
        before = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)
