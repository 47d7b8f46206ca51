"""Compares inference engines on one model and text: how fast each is, and how often their outputs agree.

Each engine runs in a process of its own, as it would in use: two multithreaded libraries in one process slow each other
down. Each warms up on the whole text; then the rounds of all engines are interleaved, so that other load on the machine
slows all of them alike. Imports no torch.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heed.errors import ConfigError
from heed.interop.engine_names import EngineName

_SINGLE_SENTENCES = 10  # also translated one by one


@dataclass(frozen=True)
class EngineTiming:
    """The translations and times of one engine."""

    engine: EngineName
    threads: int
    texts: tuple[str, ...]  # its translations
    batch_seconds: tuple[float, ...]  # for all sentences at once, by round
    single_seconds: tuple[float, ...]  # for one sentence at a time, mean per sentence, by round

    def agreement(self, other: "EngineTiming") -> float:
        """The share of sentences that both engines translate identically."""
        return statistics.mean(mine == theirs for mine, theirs in zip(self.texts, other.texts, strict=True))


def speedup(seconds: Sequence[float], baseline: Sequence[float]) -> float:
    """How many times faster than the baseline: the median of the rounds' ratios."""
    return statistics.median(slow / fast for fast, slow in zip(seconds, baseline, strict=True))


def race(
    model: Path, texts: Sequence[str], engines: Sequence[EngineName], *, beam: int, rounds: int, threads: int | None
) -> list[EngineTiming]:
    """Translate the texts `rounds` times with each engine. threads: per engine; None: the engine's own default."""
    workers: list[_Worker] = []
    loaded: list[dict[str, Any]] = []
    with ExitStack() as stack:
        for engine in engines:  # one after another, so that they do not disturb each other's warm-up
            workers.append(_Worker(stack, threads))
            request = {"model": str(model), "engine": engine, "texts": list(texts), "beam": beam}
            loaded.append(workers[-1].request({**request, "single_sentences": _SINGLE_SENTENCES}))
        timings = [[worker.request({}) for worker in workers] for _ in range(rounds)]
    batch, single = (
        [tuple(timing[index][name] for timing in timings) for index in range(len(engines))]
        for name in ("batch_seconds", "single_seconds")
    )
    return [
        EngineTiming(engine, reply["threads"], tuple(reply["texts"]), *seconds)
        for engine, reply, *seconds in zip(engines, loaded, batch, single, strict=True)
    ]


class _Worker:
    """A process in which one engine translates on request: one JSON object per line in, one out."""

    def __init__(self, stack: ExitStack, threads: int | None) -> None:
        limited = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
        self._process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "heed.benchmarking.engine_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C does not reach the workers; they end when their stdin is closed
                env={**os.environ, **limited},
            )
        )

    def request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait for the reply."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("the worker process has no pipes")
        print(json.dumps(request), file=stdin, flush=True)
        reply = json.loads(stdout.readline() or '{"error": "the engine\'s process has ended; see above"}')
        if "error" in reply:
            raise ConfigError(reply["error"])
        return dict(reply)
