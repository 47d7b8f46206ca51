"""A system in a process of its own that answers when it is asked, in lines of JSON. Without torch: not all need it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any


class Worker:
    """The process of a script that was told to work; it ends when `ending` does."""

    def __init__(
        self, ending: ExitStack, script: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._process = ending.enter_context(
            subprocess.Popen(
                [sys.executable, script, "--work", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **(environment or {})},
            )
        )

    def ask(self, question: object = None) -> Any:
        """A question, and the answer to it."""
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return self.answer()

    def answer(self) -> Any:
        """The next that it says; what libraries print is none."""
        while self._process.stdout is not None and (line := self._process.stdout.readline()):
            try:
                return json.loads(line)
            except json.JSONDecodeError:
                continue
        raise RuntimeError("a process has ended without an answer")
