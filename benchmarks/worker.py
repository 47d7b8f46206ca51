"""A benchmark's worker process: requests and replies in lines of JSON. Imports no torch: not every system needs it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any


class Worker:
    """A process that runs a script with --work; it ends when the exit stack closes."""

    def __init__(
        self, stack: ExitStack, script: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, script, "--work", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **(environment or {})},
            )
        )

    def request(self, request: object = None) -> Any:
        """Send a request and wait for its reply."""
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return self.reply()

    def reply(self) -> Any:
        """The next line of JSON; other output, from libraries, is ignored."""
        while self._process.stdout is not None and (line := self._process.stdout.readline()):
            try:
                return json.loads(line)
            except json.JSONDecodeError:
                continue
        raise RuntimeError("the worker process has ended without a reply")
