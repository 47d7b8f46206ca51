"""Runs `heed` commands in forks of one process that has imported torch already: they start in milliseconds.

    python tests/cli/fork_server.py NAME        ends when its standard input does; `forked.py` is its client

A client connects to the abstract Unix socket NAME and sends a command's arguments, folder and environment as JSON, with
its standard input, output and error as file descriptors. It receives the process id and, when the command has ended,
its exit code (as in `subprocess`) and its peak memory in KiB. The command runs as usual from the parsing of its
arguments to its exit. Two things differ from a new process: all forks share the imports, the hash seed and what Python
reads from the environment when it starts; and the interpreter is not finalised, which would take longer.
"""

import atexit
import gc
import json
import os
import select
import signal
import socket
import sys
import threading

# Commands import these when they need them; imported here so that not every fork has to.
import rich._emoji_codes  # noqa: F401
import torch._dynamo  # noqa: F401
import typer.rich_utils  # noqa: F401

import heed.benchmarking.training
import heed.interpret.pronouns
import heed.serving.app
import heed.serving.server
import heed.training.train  # noqa: F401
from heed.cli.main import main


def serve(name: str) -> list[str]:
    """Accept commands until standard input ends; returns only in the process of a command, with its arguments."""
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"{len(threads)} threads would not survive a fork"
    gc.freeze()  # else the garbage collector would write to, and so copy, the pages of all imported modules
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the processes that wait for commands are not waited for
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in ready:
                sys.exit()
            client, _ = listener.accept()
            with client:
                if os.fork() == 0:
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    return run_command(client)


def run_command(client: socket.socket) -> list[str]:
    """Fork a command and send its exit code to the client; returns only in the process of the command."""
    content, descriptors, _, _ = socket.recv_fds(client, 1_000_000, 3)
    command = json.loads(content)
    if (process := os.fork()) != 0:
        client.send(str(process).encode())
        _, status, usage = os.wait4(process, 0)
        client.send(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_maxrss]).encode())
        os._exit(0)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(command["folder"])
    os.environ.clear()
    os.environ.update(command["environment"])
    for name in filter(None, os.environ.pop("MODULES_NOT_INSTALLED", "").split(",")):
        sys.modules[name] = None  # type: ignore[assignment]  # makes an import of this name fail
    return list(command["arguments"])


def exit_quickly(code: int) -> None:
    """Exit as Python does, but without finalising the interpreter, which takes longer than most commands."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        sys.exit(code)  # reports the error and sets the exit code
    os._exit(code)


if __name__ == "__main__":
    sys.argv = ["heed", *serve(sys.argv[1])]
    try:
        main()
    except SystemExit as end:
        if isinstance(end.code, str):
            raise
        exit_quickly(end.code or 0)
    exit_quickly(0)
