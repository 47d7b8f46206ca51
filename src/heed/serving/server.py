"""The process that listens: uvicorn, with an orderly end and answers in JSON even to what is not HTTP.

SIGTERM or Ctrl-C: `/health/ready` says no, new work is refused, what is in work is finished, then the door is closed. A
second signal ends at once.
"""

import asyncio
import contextlib
import json
import signal
import socket
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from heed.config import ServeConfig
from heed.errors import ConfigError
from heed.serving.guard import HEADERS
from heed.serving.logs import only_our_own
from heed.serving.service import Service

_LAST_CALLS = 0.3  # seconds in which those who come after the signal are told so


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


def run(
    app: ASGIApp, service: Service, config: ServeConfig, listening: socket.socket, ready: Callable[[], None]
) -> int:
    """Serve until a signal; the exit code."""
    settings = uvicorn.Config(
        app,
        http=_protocol(config.read_timeout),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,  # it would hold addresses, and texts where they are in them
        proxy_headers=False,  # anyone can write those
        server_header=False,
        h11_max_incomplete_event_size=config.header_bytes,
        timeout_keep_alive=75,  # longer than clients keep a connection: who closes first should be the one who asks
        timeout_graceful_shutdown=int(config.deadline) + 1,
        backlog=2048,
    )
    server = _Server(settings, service, ready)
    with only_our_own():
        server.run(sockets=[listening])
    return 130 if server.signals[:1] == [signal.SIGINT] else 0


class _Server(uvicorn.Server):
    """uvicorn that finishes before it stops listening."""

    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._ready = service, ready
        self._since = 0.0
        self.signals: list[int] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether to end now."""
        if self.signals and self._service.admission.taken == 0 and time.monotonic() - self._since > _LAST_CALLS:
            return True
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """A signal has come."""
        self.signals.append(sig)
        self._service.admission.closed = True
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


def _protocol(read_timeout: float) -> type[H11Protocol]:
    """HTTP/1.1 that answers nonsense in JSON, and hangs up on who does not finish the head of a request."""

    class Protocol(H11Protocol):
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._late = self.loop.call_later(read_timeout, transport.close)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            whole = self.conn.their_state is not h11.IDLE
            if whole and self._late is not None:
                self._late.cancel()
                self._late = None
            elif not whole and self._late is None:  # the next request of this connection has begun
                self._late = self.loop.call_later(read_timeout, self.transport.close)

        def connection_lost(self, exc: Exception | None) -> None:
            if self._late is not None:
                self._late.cancel()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
                self.transport.close()  # an answer has begun already
                return
            body = json.dumps({"error": f"Invalid request: {msg}"}).encode()
            head: list[tuple[str, Any]] = [
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(body))),
                ("Connection", "close"),
                *HEADERS.items(),
            ]
            for event in (h11.Response(status_code=400, headers=head), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
            self.transport.close()

    return Protocol
