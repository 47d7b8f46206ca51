"""Starts worker processes through a fork server, and defines the messages between HTTP process and worker.

The fork server starts the first worker, and another whenever one ends. It is forked before the HTTP process has threads
or an event loop, which a fork would not survive, and only waits: for each socket that it is sent it forks a process
that serves the other end. When the HTTP process ends, in whatever way, its sockets close, and fork server and worker
end too.

A message is a JSON object and bytes, each preceded by its length. There is no pickle: even a compromised process can
send only numbers and text.
"""

import asyncio
import gc
import json
import os
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

ServeConnection = Callable[[socket.socket], None]
MessageHead = dict[str, Any]
Message = tuple[MessageHead, bytes]
_LENGTHS = struct.Struct("!II")


class ForkServer:
    """The HTTP process's end of the fork server. serve: the main function of each worker, given its socket."""

    def __init__(self, serve: ServeConnection) -> None:
        self._socket, theirs = socket.socketpair()
        if os.fork() == 0:
            try:
                self._socket.close()
                _fork_workers(theirs, serve)
            finally:
                os._exit(0)
        theirs.close()

    def start(self) -> socket.socket:
        """Start a worker and return the socket to it."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._socket, [b"!"], [theirs.fileno()])
        return ours

    def close(self) -> None:
        self._socket.close()


def _fork_workers(requests: socket.socket, serve: ServeConnection) -> None:
    for sig in (signal.SIGINT, signal.SIGTERM):  # the HTTP process handles these, and closes our socket
        signal.signal(sig, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children need not be waited for: their sockets close
    while True:
        content, descriptors, _, _ = socket.recv_fds(requests, 1, 1)
        if not content:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            _serve_and_exit(serve, descriptors[0])
        os.close(descriptors[0])


def _serve_and_exit(serve: ServeConnection, descriptor: int) -> NoReturn:
    try:
        with socket.socket(fileno=descriptor) as connection:
            serve(connection)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


class Channel:
    """One end of a connection between HTTP process and worker, for asyncio."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, connection: socket.socket) -> "Channel":
        return cls(*await asyncio.open_connection(sock=connection))

    def send(self, head: MessageHead, body: bytes = b"") -> None:
        """Queue a message; it is lost if the other end is closed, which `receive` reports."""
        if not self._writer.is_closing():
            self._writer.write(pack_message(head, body))

    async def drain(self) -> None:
        """Wait until most of the queued bytes are sent."""
        try:
            await self._writer.drain()
        except ConnectionError:
            return

    async def receive(self) -> Message | None:
        """The next message; None: the other end is closed."""
        try:
            lengths = _LENGTHS.unpack(await self._reader.readexactly(_LENGTHS.size))
            head, body = [await self._reader.readexactly(length) for length in lengths]
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return json.loads(head), body

    def close(self) -> None:
        """Close the connection; queued messages are still delivered."""
        self._writer.close()


def exclude_from_collections() -> None:
    """Exclude all objects that exist now from garbage collections: called when a process is ready to serve.

    They stay until it ends. With torch they are so many that a full collection would stop all threads for more than a
    tenth of a second, every few seconds.
    """
    gc.collect()
    gc.freeze()


def pack_message(head: MessageHead, body: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return _LENGTHS.pack(len(text), len(body)) + text + body


def receive_message(connection: socket.socket) -> Message | None:
    """The next message, blocking; None: the other end is closed."""
    try:
        lengths = _LENGTHS.unpack(_receive_exactly(connection, _LENGTHS.size))
        head, body = (_receive_exactly(connection, length) for length in lengths)
    except (EOFError, ConnectionError):
        return None
    return json.loads(head), body


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        if not (chunk := connection.recv(size - len(content))):
            raise EOFError
        content += chunk
    return bytes(content)
