"""The HTTP server: uvicorn with bounded connections, JSON errors for malformed HTTP, and an orderly shutdown.

**Connections.** Stalled clients are disconnected: when the head of a request is not whole after `read_timeout`, or when
nothing of an answer has been read in as long. Above the maximum number of connections, the one that has been silent
longest is closed, of those without a request in work: idle ones, and those whose request has not arrived whole. If
all have a request in work, the newest connection is refused.

**Shutdown.** On SIGTERM or Ctrl-C `/health/ready` answers 503, new requests are refused, requests in work are finished,
then the socket is closed. A second signal ends at once.
"""

import asyncio
import contextlib
import json
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, ClassVar

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from heed.errors import ConfigError
from heed.serving.config import ServeConfig
from heed.serving.http_errors import log_only_own_defects
from heed.serving.limits import Admission
from heed.serving.security_middleware import HEADERS

_LAST_CALLS = 0.3  # seconds after the signal in which new clients are told of it,
_KNOWN = 2.0  # and in which connected ones are: what they have just sent would be lost
_BACKLOG = 2048  # connections that the system queues for us
_SPARE = 32  # file descriptors for all that is not a connection,
_AT_ONCE = 2  # connections accepted at once among them: closed ones free theirs only some turns of the loop later
_READ_AT_ONCE = 32 << 10  # bytes; asyncio would take 256 KiB, for each of thousands of connections
_LINGER = 1.0  # seconds for the rest of malformed HTTP to arrive: closed before it, the answer would be lost
_DISCARDED = 16 << 20  # bytes of a body that nobody reads, after the answer; then the connection is closed


def bind(config: ServeConfig) -> socket.socket:
    """Bind the port, or say why not, before anything slow is done."""
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
    """The number of connections that the system's limit on open files allows, at most `wanted`.

    Without a free descriptor the system accepts no connection at all, and idle ones would keep everyone out.
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


def run(
    app: ASGIApp, admission: Admission, config: ServeConfig, listening: socket.socket, ready: Callable[[], None]
) -> int:
    """Serve until a signal; the exit code."""
    settings = uvicorn.Config(
        app,
        http=_protocol(config.read_timeout, connection_limit(config.connections)),
        loop="asyncio",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,  # it would hold addresses, and texts in query strings
        proxy_headers=False,  # anyone can write those
        server_header=False,
        h11_max_incomplete_event_size=config.header_bytes,
        timeout_keep_alive=75,  # longer than clients do: the client should close first
        timeout_graceful_shutdown=int(config.deadline) + 1,
        backlog=_AT_ONCE,
    )
    server = _Server(settings, admission, ready)
    with log_only_own_defects():
        server.run(sockets=[listening])
    return 130 if server.signals[:1] == [signal.SIGINT] else 0


class _Server(uvicorn.Server):
    """uvicorn that finishes the requests in work before it stops listening."""

    def __init__(self, config: uvicorn.Config, admission: Admission, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._admission, self._ready = admission, ready
        self._since = 0.0
        self.signals: list[int] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or []:
            listening.listen(_BACKLOG)
        with contextlib.suppress(OSError):  # nobody reads it, or the disk is full: no reason to end
            self._ready()

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether to end now."""
        if not self.signals:
            return await super().on_tick(counter)
        expected = self.server_state.connections and self.signals[0] == signal.SIGTERM
        patience = _KNOWN if expected else _LAST_CALLS
        if self._admission.taken:
            patience += self._admission.deadline  # what takes longer is not waited for
        return self.force_exit or time.monotonic() - self._since > patience

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """On a signal: shut down; on a second one, at once."""
        self.signals.append(sig)
        self._admission.closed = True
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


def _protocol(read_timeout: float, most: int) -> type[H11Protocol]:
    """A protocol class for uvicorn, with its own table of connections."""
    return type("BoundedProtocol", (_Protocol,), {"read_timeout": read_timeout, "most": most, "waiting": {}})


class _Protocol(H11Protocol):
    """One HTTP connection."""

    read_timeout: float  # seconds
    most: int
    waiting: ClassVar[dict["_Protocol", None]]  # connections whose client has to send something, longest silent first
    _late: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _discarded = 0
    _is_over = False  # answered for the last time: what still arrives is discarded

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, and close or refuse one if there are too many."""
        super().connection_made(transport)
        transport.max_size = _READ_AT_ONCE  # type: ignore[attr-defined]
        self._late = self.loop.call_later(self.read_timeout, transport.close)
        self.waiting[self] = None
        if len(self.connections) > self.most:
            silent = next(iter(self.waiting))
            if silent is self:
                self._answer(503, f"Too busy: {self.most} connections are served already", [("Retry-After", "1")])
                transport.close()
            else:
                self._end(silent)

    def _end(self, silent: "_Protocol") -> None:
        """Close a connection; it counts no more, although its socket is closed a moment later."""
        self.waiting.pop(silent, None)
        self.connections.discard(silent)
        silent.transport.abort()

    def _update_waiting(self) -> None:
        """Put the connection last in `waiting` if its client has to send something, else take it out."""
        self.waiting.pop(self, None)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and not self.transport.is_closing():
            self.waiting[self] = None

    def data_received(self, data: bytes) -> None:
        """Parse bytes of requests, and time how long a head takes."""
        if self.transport.is_closing() or self._is_over:
            return
        super().data_received(data)
        if self.conn.their_state is h11.ERROR:
            return
        whole = self.conn.their_state is not h11.IDLE
        if whole and self._late is not None:
            self._late.cancel()
            self._late = None
        elif not whole and self._late is None:  # the next request of this connection has begun
            self._late = self.loop.call_later(self.read_timeout, self.transport.close)
        self._update_waiting()
        self._discard(len(data))

    def _discard(self, size: int) -> None:
        """Count bytes of a body that arrive after its answer."""
        if self.conn.their_state is not h11.SEND_BODY or self.conn.our_state is not h11.DONE:
            self._discarded = 0
        elif (discarded := self._discarded + size) > _DISCARDED:
            self.transport.close()
        else:
            self._discarded = discarded

    def on_response_complete(self) -> None:
        """After an answer the client has to send something again."""
        super().on_response_complete()
        self._update_waiting()

    def pause_writing(self) -> None:
        """The client reads slowly: watch that it reads at all."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.read_timeout, self._look_again, self._left())

    def resume_writing(self) -> None:
        """The client has read most of it."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def _look_again(self, before: int) -> None:
        """Close the connection if its client has read nothing since the last look."""
        if (left := self._left()) >= before:
            self.transport.abort()
        else:
            self._unread = self.loop.call_later(self.read_timeout, self._look_again, left)

    def _left(self) -> int:
        return self.transport.get_write_buffer_size()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection and its timers."""
        self.waiting.pop(self, None)
        for timer in (self._late, self._unread):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Malformed HTTP gets a JSON error."""
        self._answer(400, f"Invalid request: {msg}", [])
        if not self.transport.is_closing() and self.transport.can_write_eof():
            self._is_over = True
            self.transport.write_eof()
            self._late = self.loop.call_later(_LINGER, self.transport.close)
        else:
            self.transport.close()

    def _answer(self, status: int, error: str, headers: list[tuple[str, str]]) -> None:
        """Answer without the application, and close the connection."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()  # an answer has begun
            return
        if self._late is not None:
            self._late.cancel()
        body = json.dumps({"error": error}).encode()
        head: list[tuple[str, Any]] = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
            *headers,
            *HEADERS.items(),
        ]
        for event in (h11.Response(status_code=status, headers=head), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
