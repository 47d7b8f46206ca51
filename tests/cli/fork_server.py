"""Runs `heed` commands in forks of one process that has imported torch already: they start in milliseconds.

    python tests/cli/fork_server.py NAME        ends when its standard input does; `forked.py` is its client

Enters, over a connection to the abstract Unix socket NAME: arguments, folder and environment of a command as JSON, with
its standard input, output and error as descriptors. Leaves: its process id; when it has ended, its exit code (as in
`subprocess`) and the most memory it took, in KiB. A command is the real one, from the parsing of its arguments to its
exit. What comes before it has in common with its siblings: imports, the order of sets, what Python itself takes from
the environment when it starts. What comes after it is left out: Python would take down all that was imported.
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

# What commands import when they need it; all of it here, as each of their forks would have to import it again.
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
    """Take commands for ever; comes back in the process of each command, with its arguments."""
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"{len(threads)} threads would not survive a fork"
    gc.freeze()  # else a command's last act is to visit everything that was imported, which copies it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for attendants
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
    """Start a command and tell its client how it ends; comes back in the process of the command."""
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
        sys.modules[name] = None  # type: ignore[assignment]  # Python's own way to have an import fail
    return list(command["arguments"])


def exit_quickly(code: int) -> None:
    """End as Python does up to the point where it takes modules down, which takes longer than most commands."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        sys.exit(code)  # says what happened, and changes the code
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
