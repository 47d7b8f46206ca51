"""HTTP/1.1 that answers malformed requests in JSON, closes stalled connections, and bounds how many there are.

A connection ends when the head of a request is not whole after `read_timeout`, and when its client has read nothing of
what waits for it in as long: slow is welcome, but neither may take a connection for ever. Where there are more
connections than `most`, the one that has been silent longest ends, of those that nobody works for: idle ones, and those
whose request has not arrived whole. If all are being worked for, the newest is refused.
"""

import asyncio
import json
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from heed.serving.guard import HEADERS

_READ_AT_ONCE = 32 << 10  # bytes; asyncio would take 256 KiB, for each of thousands of connections
_LINGER = 1.0  # seconds for the last of what is not HTTP to arrive: closed before it, the answer would be lost
_DISCARDED = 16 << 20  # bytes of a body that nobody reads, after the answer; then the connection ends


def protocol(read_timeout: float, most: int) -> type[H11Protocol]:
    """The protocol with this much patience, for at most so many connections."""
    return type("Patient", (Protocol,), {"read_timeout": read_timeout, "most": most, "waiting": {}})


class Protocol(H11Protocol):
    """One connection."""

    read_timeout: float  # seconds
    most: int
    waiting: ClassVar[dict["Protocol", None]]  # connections whose client has to send something, longest silent first
    _late: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _discarded = 0
    _is_over = False  # it was answered for the last time, and what still comes is thrown away

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Someone has come."""
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

    def _end(self, silent: "Protocol") -> None:
        """End a connection; it counts no more, although its socket is closed a moment later."""
        self.waiting.pop(silent, None)
        self.connections.discard(silent)
        silent.transport.abort()

    def _note_whose_turn_it_is(self) -> None:
        """Whether the client has to send something; if so, it has been silent shortest."""
        self.waiting.pop(self, None)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and not self.transport.is_closing():
            self.waiting[self] = None

    def data_received(self, data: bytes) -> None:
        """Some of a request, or of several."""
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
        self._note_whose_turn_it_is()
        self._discard(len(data))

    def _discard(self, size: int) -> None:
        """Count what arrives of a body after its answer."""
        if self.conn.their_state is not h11.SEND_BODY or self.conn.our_state is not h11.DONE:
            self._discarded = 0
        elif (discarded := self._discarded + size) > _DISCARDED:
            self.transport.close()
        else:
            self._discarded = discarded

    def on_response_complete(self) -> None:
        """An answer has been sent."""
        super().on_response_complete()
        self._note_whose_turn_it_is()

    def pause_writing(self) -> None:
        """More waits to be read than should."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.read_timeout, self._look_again, self._left())

    def resume_writing(self) -> None:
        """Most of it has been read."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def _look_again(self, before: int) -> None:
        """Slow is welcome; who has read nothing at all since the last look is not there."""
        if (left := self._left()) >= before:
            self.transport.abort()
        else:
            self._unread = self.loop.call_later(self.read_timeout, self._look_again, left)

    def _left(self) -> int:
        return self.transport.get_write_buffer_size()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        self.waiting.pop(self, None)
        for timer in (self._late, self._unread):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
        self._answer(400, f"Invalid request: {msg}", [])
        if not self.transport.is_closing() and self.transport.can_write_eof():
            self._is_over = True
            self.transport.write_eof()
            self._late = self.loop.call_later(_LINGER, self.transport.close)
        else:
            self.transport.close()

    def _answer(self, status: int, error: str, headers: list[tuple[str, str]]) -> None:
        """Answer without the application; the connection ends after that."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()  # an answer has begun already
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
