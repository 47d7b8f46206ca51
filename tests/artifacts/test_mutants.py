"""Folders that somebody has tampered with, manifest and all: each is used, or refused in one line, and soon."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from select import select

import pytest

from tests.artifacts.mutants import whole_folders, write_mutant

HERE = Path(__file__).parent
SECONDS = 60  # for one folder; they take milliseconds
MEMORY = 1 << 30


class Opener:
    """A process that opens folders; if one ends it, the next folder gets another."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        command = [sys.executable, str(HERE / "open_mutants.py"), str(MEMORY)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)
        assert self._answer(600)["end"] == "ready"

    def __call__(self, path: Path) -> dict[str, str]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        found = self._answer(SECONDS)
        if found["end"] in ("hung", "died"):
            self.close()
            self._start()
        return found

    def _answer(self, seconds: float) -> dict[str, str]:
        assert self.process.stdout is not None
        if not select([self.process.stdout], [], [], seconds)[0]:
            return {"end": "hung", "text": ""}
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"end": "died", "text": f"exit code {self.process.wait()}"}

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def opener() -> Iterator[Opener]:
    one = Opener()
    try:
        yield one
    finally:
        one.close()


def ends_of(numbers: Sequence[int], path: Path) -> tuple[Counter[str], list[str]]:
    """How often each end was met, and all that went wrong."""
    folders = whole_folders(path)
    counts: Counter[str] = Counter()
    wrong = []
    with opener() as opened:
        for name in folders:
            assert opened(path / name)["end"] == "used", name
        for number in numbers:
            mutant = path / "mutant"
            what = write_mutant(number, folders, mutant)
            found = opened(mutant)
            counts[found["end"]] += 1
            if number % 1000 == 999:
                print(number + 1, dict(counts), flush=True)
            if found["end"] not in ("used", "refused"):
                wrong.append(f"{number}: {what}: {found['end']}: {found['text'][:300]}")
            shutil.rmtree(mutant)
    return counts, wrong


def test_tampered_folders_are_used_or_refused_in_one_line(tmp_path: Path) -> None:
    once_wrong = (1180, 9288, 10315, 12687, 13695, 14386, 18145)
    counts, wrong = ends_of((*range(150), *once_wrong), tmp_path)
    assert not wrong, "\n".join(wrong)
    assert counts["refused"] > 75
    assert counts["used"] > 10


@pytest.mark.endless
def test_20_000_tampered_folders_are_used_or_refused_in_one_line(tmp_path: Path) -> None:
    counts, wrong = ends_of(range(20_000), tmp_path)
    assert not wrong, f"{counts}\n" + "\n".join(wrong)
