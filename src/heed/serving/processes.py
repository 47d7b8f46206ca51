"""Worker processes, and the messages between them and the process that listens.

A *keeper* process starts workers: the first, and the next if that one ends. It is forked before the server has threads
or an event loop, which no fork would survive, and does nothing but wait. For each socket it is sent it forks a process
that serves the other end. When the server ends, however it ends, its sockets close: then keeper and worker end too.

A message is a JSON object and bytes, each with its length before it. No pickle: whatever a process has been made to
send, the other one reads numbers and text.
"""

import asyncio
import json
import os
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

Serve = Callable[[socket.socket], None]
Head = dict[str, Any]
Message = tuple[Head, bytes]
_LENGTHS = struct.Struct("!II")


class ForkServer:
    """The server's end of the keeper. serve: what each worker does with its socket."""

    def __init__(self, serve: Serve) -> None:
        self._asking, theirs = socket.socketpair()
        if os.fork() == 0:
            try:
                self._asking.close()
                _keep(theirs, serve)
            finally:
                os._exit(0)
        theirs.close()

    def start(self) -> socket.socket:
        """Start a worker; the socket to it."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._asking, [b"!"], [theirs.fileno()])
        return ours

    def close(self) -> None:
        """Start no more workers."""
        self._asking.close()


def _keep(asked: socket.socket, serve: Serve) -> None:
    for sig in (signal.SIGINT, signal.SIGTERM):  # the server handles these, and ends us
        signal.signal(sig, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no wait here: the server sees their sockets close
    while True:
        content, descriptors, _, _ = socket.recv_fds(asked, 1, 1)
        if not content:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            asked.close()
            _serve_and_exit(serve, descriptors[0])
        os.close(descriptors[0])


def _serve_and_exit(serve: Serve, descriptor: int) -> NoReturn:
    try:
        with socket.socket(fileno=descriptor) as connection:
            serve(connection)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


class Channel:
    """One end of a connection, for an event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def over(cls, connection: socket.socket) -> "Channel":
        """The channel over a connected socket."""
        return cls(*await asyncio.open_connection(sock=connection))

    def send(self, head: Head, body: bytes = b"") -> None:
        """Queue a message. If the other end is gone it is lost; `receive` tells that."""
        if not self._writer.is_closing():
            self._writer.write(packed(head, body))

    async def drained(self) -> None:
        """Wait until most of the queued bytes have left."""
        try:
            await self._writer.drain()
        except ConnectionError:
            return

    async def receive(self) -> Message | None:
        """The next message; None: the other end is gone."""
        try:
            lengths = _LENGTHS.unpack(await self._reader.readexactly(_LENGTHS.size))
            head, body = [await self._reader.readexactly(length) for length in lengths]
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return json.loads(head), body

    def close(self) -> None:
        """Close it; what was sent still arrives."""
        self._writer.close()


def packed(head: Head, body: bytes = b"") -> bytes:
    """A message as bytes."""
    text = json.dumps(head).encode()
    return _LENGTHS.pack(len(text), len(body)) + text + body


def received(connection: socket.socket) -> Message | None:
    """The next message, without an event loop; None: the other end is gone."""
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
