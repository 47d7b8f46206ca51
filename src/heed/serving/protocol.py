"""HTTP/1.1 that answers nonsense in JSON, and hangs up on who stops half-way.

A connection ends when the head of a request is not whole after `read_timeout`, and when its client has read nothing of
what waits for it in as long: slow is welcome, but neither may take a connection for ever.
"""

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from heed.serving.guard import HEADERS


def protocol(read_timeout: float) -> type[H11Protocol]:
    """The protocol with this much patience."""
    return type("Patient", (Protocol,), {"read_timeout": read_timeout})


class Protocol(H11Protocol):
    """One connection."""

    read_timeout: float  # seconds
    _late: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Someone has come."""
        super().connection_made(transport)
        self._late = self.loop.call_later(self.read_timeout, transport.close)

    def data_received(self, data: bytes) -> None:
        """Some of a request, or of several."""
        super().data_received(data)
        whole = self.conn.their_state is not h11.IDLE
        if whole and self._late is not None:
            self._late.cancel()
            self._late = None
        elif not whole and self._late is None:  # the next request of this connection has begun
            self._late = self.loop.call_later(self.read_timeout, self.transport.close)

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
        for timer in (self._late, self._unread):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
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
