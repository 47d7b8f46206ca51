"""Messages between two processes, over a socket: a JSON object and bytes, each with its length before it.

No pickle: whatever the one process has been made to say, the other reads numbers and text.
"""

import asyncio
import json
import socket
import struct
from typing import Any

Head = dict[str, Any]
Message = tuple[Head, bytes]
_LENGTHS = struct.Struct("!II")


class Channel:
    """One end, for an event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def over(cls, connection: socket.socket) -> "Channel":
        """The channel over a connected socket."""
        return cls(*await asyncio.open_connection(sock=connection))

    def send(self, head: Head, body: bytes = b"") -> None:
        """Have a message sent. To an end that is gone it is lost; `receive` tells that."""
        if not self._writer.is_closing():
            self._writer.write(packed(head, body))

    async def drained(self) -> None:
        """Wait until most of what was sent has left."""
        try:
            await self._writer.drain()
        except ConnectionError:
            return

    async def receive(self) -> Message | None:
        """The next message; none: the other end is gone."""
        try:
            lengths = _LENGTHS.unpack(await self._reader.readexactly(_LENGTHS.size))
            head, body = [await self._reader.readexactly(length) for length in lengths]
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return json.loads(head), body

    def close(self) -> None:
        """End it; what was sent still arrives."""
        self._writer.close()


def packed(head: Head, body: bytes = b"") -> bytes:
    """A message as it is sent."""
    text = json.dumps(head).encode()
    return _LENGTHS.pack(len(text), len(body)) + text + body


def received(connection: socket.socket) -> Message | None:
    """The next message, without an event loop; none: the other end is gone."""
    try:
        lengths = _LENGTHS.unpack(_exactly(connection, _LENGTHS.size))
        head, body = (_exactly(connection, length) for length in lengths)
    except (EOFError, ConnectionError):
        return None
    return json.loads(head), body


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        if not (part := connection.recv(size - len(found))):
            raise EOFError
        found += part
    return bytes(found)
