"""A process that starts others: the one that translates, and the next if that one ends.

It is forked before the server has threads or an event loop, which no fork would survive, and does nothing but wait. For
each socket that it is sent it forks a process that serves the other end of it. When the server ends, however it ends,
its sockets close: then the keeper ends, and so does the process that translates.
"""

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

Serve = Callable[[socket.socket], None]


class Keeper:
    """The keeper as the server sees it. serve: what is done in each process that it starts, with its socket."""

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
        """Have a process started; its socket."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._asking, [b"!"], [theirs.fileno()])
        return ours

    def close(self) -> None:
        """Have no more processes started."""
        self._asking.close()


def _keep(asked: socket.socket, serve: Serve) -> None:
    for sig in (signal.SIGINT, signal.SIGTERM):  # these are for the server, which ends us; a terminal tells us all
        signal.signal(sig, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them here: the server sees their sockets close
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
