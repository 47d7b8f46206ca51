"""A claim: what is said, who says it, and the experiment that measures it.

An experiment has two functions: `measure` gives the numbers, `judge` the verdict and one sentence on them, so that the
text of the book follows from what was measured.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Literal

import torch

from heed.backends.machine import cpu_instructions
from heed.backends.select import default_device
from heed.claims.parallel_corpus import ParallelCorpus
from heed.claims.processes import JobPool
from heed.claims.result import ClaimResult, Panel, Scale, Verdict

_SEEDS: dict[Scale, int] = {"smallest": 2, "small": 3, "full": 3}


@dataclass(frozen=True)
class Context:
    """How large an experiment is, where it may write, and whom it tells of its progress."""

    scale: Scale
    folder: Path  # of the experiment's own files, such as runs
    report: Callable[[str], None]
    jobs: int = 1  # how many models to train at the same time
    pool: JobPool | None = None  # the processes that train them; none: started, and ended, at each need
    corpus: ParallelCorpus | None = None  # the user's, for claims on natural text
    notes: list[str] = field(default_factory=list)  # what the reader should know of the experiment, besides numbers

    @property
    def seeds(self) -> range:
        """The seeds, or measurements, to average over."""
        return range(1, _SEEDS[self.scale] + 1)


@dataclass(frozen=True)
class Claim:
    """A statement on attention or on what came before it, and its experiment."""

    name: str
    statement: str
    source: str
    measure: Callable[[Context], list[Panel]]
    judge: Callable[[list[Panel]], tuple[Verdict, str]]
    notes: tuple[tuple[int, str], ...] = ()  # what the notes say: the number of a note, and its words
    repeated: Literal["seeds", "measurements"] = "seeds"  # what means and intervals are over
    runs: str = ""  # the claim whose trained models it uses too; empty: its own
    needs_corpus: bool = False  # measured on a parallel corpus that the user gives

    def run(self, context: Context) -> ClaimResult:
        """Measure and judge."""
        began = time.monotonic()
        panels = self.measure(context)
        verdict, finding = self.judge(panels)
        seconds = round(time.monotonic() - began, 1)
        today = date.today().isoformat()
        corpus = "" if context.corpus is None or not self.needs_corpus else context.corpus.description
        return ClaimResult(
            self.name, context.scale, panels, verdict, finding, _hardware(), today, seconds, corpus, context.notes
        )


def _hardware() -> str:
    count = torch.get_num_threads()
    threads = f"{count} CPU thread{'s' if count > 1 else ''}, {cpu_instructions()}"
    return threads if default_device().type == "cpu" else f"{torch.cuda.get_device_name()}, {threads}"
