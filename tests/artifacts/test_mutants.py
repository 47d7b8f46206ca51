"""Tampered folders whose manifests match: each is used, or refused with a one-line error, without a crash or a hang."""

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

from tests.artifacts.mutants import intact_folders, write_mutant

HERE = Path(__file__).parent
SECONDS = 60  # for one folder; they take milliseconds
MEMORY = 1 << 30


class Opener:
    """A process that opens folders; it is restarted when a folder kills or hangs it."""

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
        outcome = self._answer(SECONDS)
        if outcome["end"] in ("hung", "died"):
            self.close()
            self._start()
        return outcome

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
    process = Opener()
    try:
        yield process
    finally:
        process.close()


def outcomes(numbers: Sequence[int], path: Path) -> tuple[Counter[str], list[str]]:
    """How often each outcome occurred, and a description of every wrong one."""
    folders = intact_folders(path)
    counts: Counter[str] = Counter()
    wrong = []
    with opener() as open_folder:
        for name in folders:
            assert open_folder(path / name)["end"] == "used", name
        for number in numbers:
            mutant = path / "mutant"
            description = write_mutant(number, folders, mutant)
            outcome = open_folder(mutant)
            counts[outcome["end"]] += 1
            if number % 1000 == 999:
                print(number + 1, dict(counts), flush=True)
            if outcome["end"] not in ("used", "refused"):
                wrong.append(f"{number}: {description}: {outcome['end']}: {outcome['text'][:300]}")
            shutil.rmtree(mutant)
    return counts, wrong


def test_a_tampered_folder_is_used_or_refused_with_one_line(tmp_path: Path) -> None:
    fixed_bugs = (1180, 9288, 10315, 12687, 13695, 14386, 18145)
    counts, wrong = outcomes((*range(150), *fixed_bugs), tmp_path)
    assert not wrong, "\n".join(wrong)
    assert counts["refused"] > 75
    assert counts["used"] > 10


@pytest.mark.endless
def test_each_of_20_000_tampered_folders_is_used_or_refused_with_one_line(tmp_path: Path) -> None:
    counts, wrong = outcomes(range(20_000), tmp_path)
    assert not wrong, f"{counts}\n" + "\n".join(wrong)
