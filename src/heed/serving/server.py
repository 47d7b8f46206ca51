"""The HTTP server: uvicorn with bounded connections, JSON errors for malformed HTTP, and graceful shutdown.

**Connections.** Stalled clients are disconnected: when the headers of a request are incomplete after `read_timeout`, or
when the client has read nothing of a response for as long. Beyond the maximum number of connections, the longest idle
one is closed; connections whose request is incomplete count as idle. If all have an active request, the newest
connection gets 503.

**Shutdown.** On SIGTERM or Ctrl-C `/health/ready` answers 503, new requests are rejected, active requests are finished,
then the socket is closed. A second signal stops the server at once.
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
from heed.serving.http_errors import log_only_heed_errors
from heed.serving.limits import Admission
from heed.serving.quick_refusals import QuickRefusals
from heed.serving.security_middleware import HEADERS

_GRACE_NEW = 0.3  # seconds after the signal in which new connections still get a 503
_GRACE_CONNECTED = 2.0  # the same for connected clients, whose next request may be on its way
_BACKLOG = 2048  # connections that the kernel queues
_SPARE_FILES = 32  # file descriptors that are not connections
_ACCEPT_BATCH = 2  # connections accepted per loop iteration: closed ones free their descriptor only later
_READ_BUFFER = 32 << 10  # bytes per connection; asyncio's default is 256 KiB
_LINGER = 1.0  # seconds to receive the rest of malformed HTTP: closing earlier would lose the response
_MAX_DISCARDED = 16 << 20  # bytes of an unread body after its response; then the connection is closed


def bind(config: ServeConfig) -> socket.socket:
    """Bind the port, before the models are loaded."""
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


def connection_limit(requested: int) -> int:
    """The number of connections that the limit on open files (RLIMIT_NOFILE) allows, at most `requested`.

    Without a free descriptor no connection can be accepted, so idle ones would block all clients.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = requested + _SPARE_FILES
    if soft < needed and soft != resource.RLIM_INFINITY:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < 2 * _SPARE_FILES:
            raise ConfigError(
                f"the limit on open files is {soft}: raise it to at least {2 * _SPARE_FILES} with ulimit -n"
            )
        return min(requested, soft - _SPARE_FILES)
    return requested


def run(
    app: ASGIApp,
    admission: Admission,
    quick_refusals: QuickRefusals,
    config: ServeConfig,
    listening: socket.socket,
    ready: Callable[[], None],
) -> int:
    """Serve until a signal; return the exit code."""
    settings = uvicorn.Config(
        app,
        http=_protocol(config.read_timeout, connection_limit(config.connections), quick_refusals),
        loop="asyncio",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,  # it would contain addresses, and texts in query strings
        proxy_headers=False,  # `security_middleware` handles them
        server_header=False,
        h11_max_incomplete_event_size=config.header_bytes,
        timeout_keep_alive=75,  # longer than the timeouts of clients, which should close first
        timeout_graceful_shutdown=int(config.deadline) + 1,
        backlog=_ACCEPT_BATCH,
    )
    server = _Server(settings, admission, ready)
    with log_only_heed_errors():
        server.run(sockets=[listening])
    return 130 if server.signals[:1] == [signal.SIGINT] else 0


class _Server(uvicorn.Server):
    """uvicorn that finishes active requests before it stops listening."""

    def __init__(self, config: uvicorn.Config, admission: Admission, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._admission, self._ready = admission, ready
        self._signalled_at = 0.0
        self.signals: list[int] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or []:
            listening.listen(_BACKLOG)
        with contextlib.suppress(OSError):  # a closed pipe or a full disk must not stop the server
            self._ready()

    async def on_tick(self, counter: int) -> bool:
        """Called every 0.1 s; returns whether to stop now."""
        if not self.signals:
            return await super().on_tick(counter)
        has_clients = self.server_state.connections and self.signals[0] == signal.SIGTERM
        grace = _GRACE_CONNECTED if has_clients else _GRACE_NEW
        if self._admission.active:
            grace += self._admission.deadline
        return self.force_exit or time.monotonic() - self._signalled_at > grace

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """Begin a graceful shutdown; on a second signal, stop at once."""
        self.signals.append(sig)
        self._admission.shutting_down = True
        if len(self.signals) > 1:
            self.should_exit = self.force_exit = True
        self._signalled_at = time.monotonic()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Unlike uvicorn, do not raise signals again afterwards: a graceful shutdown exits with code 0."""
        before = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)


def _protocol(read_timeout: float, max_connections: int, quick_refusals: QuickRefusals) -> type[H11Protocol]:
    """A protocol class for uvicorn, with its own table of idle connections."""
    attributes = {
        "read_timeout": read_timeout,
        "max_connections": max_connections,
        "quick_refusals": quick_refusals,
        "idle": {},
    }
    return type("BoundedProtocol", (_Protocol,), attributes)


class _Protocol(H11Protocol):
    """One HTTP connection."""

    read_timeout: float  # seconds
    max_connections: int
    quick_refusals: QuickRefusals
    idle: ClassVar[dict["_Protocol", None]]  # connections without an active request, longest idle first
    _read_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _discarded = 0
    _is_closing = False  # the last response is sent: further bytes are discarded

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection; if there are too many, close the longest idle one or reject this one."""
        super().connection_made(transport)
        transport.max_size = _READ_BUFFER  # type: ignore[attr-defined]
        self._read_timer = self.loop.call_later(self.read_timeout, transport.close)
        self.idle[self] = None
        if len(self.connections) > self.max_connections:
            longest_idle = next(iter(self.idle))
            if longest_idle is self:
                self._respond(
                    503, f"Too busy: all {self.max_connections} connections are in use", [("Retry-After", "1")]
                )
                transport.close()
            else:
                self._abort(longest_idle)

    def _abort(self, other: "_Protocol") -> None:
        """Close a connection; it stops counting now, although its socket is closed a moment later."""
        self.idle.pop(other, None)
        self.connections.discard(other)
        other.transport.abort()

    def _update_idle(self) -> None:
        """Move the connection to the end of `idle` if it has no active request, else remove it."""
        self.idle.pop(self, None)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and not self.transport.is_closing():
            self.idle[self] = None

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, and start or stop the timer for complete headers."""
        if self.transport.is_closing() or self._is_closing or self._refuse_quickly(data):
            return
        super().data_received(data)
        if self.conn.their_state is h11.ERROR:
            return
        has_headers = self.conn.their_state is not h11.IDLE
        if has_headers and self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None
        elif not has_headers and self._read_timer is None:  # the next request on this connection has begun
            self._read_timer = self.loop.call_later(self.read_timeout, self.transport.close)
        self._update_idle()
        self._discard(len(data))

    def _refuse_quickly(self, data: bytes) -> bool:
        """Answer a request that the server is too busy for, if these bytes are the whole of it; whether they were."""
        is_between_requests = self.conn.states == {h11.CLIENT: h11.IDLE, h11.SERVER: h11.IDLE}
        if not is_between_requests or self.conn.trailing_data[0] or self.flow.write_paused:
            return False
        if (response := self.quick_refusals.response(data, self.server_state.default_headers)) is None:
            return False
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None
        self.transport.write(response)
        self.on_response_complete()
        return True

    def _discard(self, size: int) -> None:
        """Count bytes of a body that arrive after its response."""
        if self.conn.their_state is not h11.SEND_BODY or self.conn.our_state is not h11.DONE:
            self._discarded = 0
        elif (discarded := self._discarded + size) > _MAX_DISCARDED:
            self.transport.close()
        else:
            self._discarded = discarded

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_idle()

    def pause_writing(self) -> None:
        """The client reads slowly: start a timer that checks that it reads at all."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.read_timeout, self._check_progress, self._unsent())

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()

    def _check_progress(self, before: int) -> None:
        """Close the connection if its client has read nothing since the last check."""
        if (left := self._unsent()) >= before:
            self.transport.abort()
        else:
            self._write_timer = self.loop.call_later(self.read_timeout, self._check_progress, left)

    def _unsent(self) -> int:
        return self.transport.get_write_buffer_size()

    def connection_lost(self, exc: Exception | None) -> None:
        self.idle.pop(self, None)
        for timer in (self._read_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer malformed HTTP with a JSON error."""
        self._respond(400, f"Invalid request: {msg}", [])
        if not self.transport.is_closing() and self.transport.can_write_eof():
            self._is_closing = True
            self.transport.write_eof()
            self._read_timer = self.loop.call_later(_LINGER, self.transport.close)
        else:
            self.transport.close()

    def _respond(self, status: int, error: str, headers: list[tuple[str, str]]) -> None:
        """Send an error without calling the application, and close the connection."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()  # a response has begun
            return
        if self._read_timer is not None:
            self._read_timer.cancel()
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
