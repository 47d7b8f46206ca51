"""Engines side by side on one model and one text: how fast each is, and whether they say the same.

Each engine has a process of its own, as it would have in use: two libraries with threads in one process slow each other
down. Each warms up on the whole text; then the rounds of all engines are interleaved, so that whatever else the machine
does slows all of them alike. Imports no torch.
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

_ALONE = 10  # sentences that are also translated one by one


@dataclass(frozen=True)
class EngineTiming:
    """What one engine did."""

    engine: EngineName
    threads: int
    texts: tuple[str, ...]  # its translations
    batch_seconds: tuple[float, ...]  # seconds for all sentences at once, by round
    single_seconds: tuple[float, ...]  # seconds for a sentence by itself, by round

    def agreement(self, other: "EngineTiming") -> float:
        """The share of sentences that both translate alike."""
        return statistics.mean(one == two for one, two in zip(self.texts, other.texts, strict=True))


def speedup(one: Sequence[float], other: Sequence[float]) -> float:
    """How many times faster the first is: the median of the rounds' ratios, each of two neighbours in time."""
    return statistics.median(slow / fast for fast, slow in zip(one, other, strict=True))


def race(
    model: Path, texts: Sequence[str], engines: Sequence[EngineName], *, beam: int, rounds: int, threads: int | None
) -> list[EngineTiming]:
    """Let engines translate the texts, `rounds` times each; threads: of each, none: as many as it takes by itself."""
    workers: list[_Worker] = []
    opened: list[dict[str, Any]] = []
    with ExitStack() as ending:
        for engine in engines:  # one after another: they warm up undisturbed
            workers.append(_Worker(ending, threads))
            asked = {"model": str(model), "engine": engine, "texts": list(texts), "beam": beam, "alone": _ALONE}
            opened.append(workers[-1].ask(asked))
        done = [[worker.ask({}) for worker in workers] for _ in range(rounds)]
    together, alone = (
        [tuple(each[number][kind] for each in done) for number in range(len(engines))] for kind in ("together", "alone")
    )
    return [
        EngineTiming(engine, one["threads"], tuple(one["texts"]), *times)
        for engine, one, *times in zip(engines, opened, together, alone, strict=True)
    ]


class _Worker:
    """A process in which one engine translates when asked to: a JSON object a line in, one out."""

    def __init__(self, ending: ExitStack, threads: int | None) -> None:
        limited = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
        self._process = ending.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "heed.benchmarking.engine_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # an interruption is for us; they end when nobody asks any more
                env={**os.environ, **limited},
            )
        )

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Have it do something, and wait for what comes of it."""
        asked, answered = self._process.stdin, self._process.stdout
        if asked is None or answered is None:
            raise RuntimeError("a process with pipes has none")
        print(json.dumps(question), file=asked, flush=True)
        answer = json.loads(answered.readline() or '{"error": "the engine\'s process has ended; see above"}')
        if "error" in answer:
            raise ConfigError(answer["error"])
        return dict(answer)
