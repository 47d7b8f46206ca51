"""While a folder is written, replaced or published, a reader finds the complete old model or the complete new one."""

import errno
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from heed.artifacts import writing
from heed.artifacts.manifest import verify
from heed.artifacts.writing import MANIFEST, current_version, finish_publishing, publish, write_folder
from heed.errors import FolderError

OLD = {"config.json": b"old", "model.safetensors": b"old " * 3000, "source_tokenizer.json": b"old"}
NEW = {"config.json": b"new", "model.safetensors": b"new " * 3000, "README.md": b"new"}


class Killed(BaseException):
    """Stands for a kill: no `except Exception` handles it."""


class Kills:
    """Makes every file system call fail from the n-th on, as if the process had been killed at that moment."""

    def __init__(self) -> None:
        self.after: int | None = None
        self.calls = 0
        sys.addaudithook(self._count)

    def _count(self, event: str, _arguments: Any) -> None:
        if self.after is None or event.split(".", maxsplit=1)[0] not in ("open", "os", "shutil"):
            return
        self.calls += 1
        if self.calls > self.after:
            raise Killed

    def during(self, work: Callable[[], None], after: int) -> bool:
        """Whether the work was killed."""
        self.after, self.calls = after, 0
        try:
            work()
        except Killed:
            return True
        finally:
            self.after = None
        return False


@pytest.fixture(scope="module")
def kills() -> Kills:
    return Kills()  # an audit hook cannot be removed, so there is only one


def model_in(path: Path) -> dict[str, bytes] | None:
    """The files that a reader finds, verified against the manifest; None if there is no manifest."""
    version = current_version(path)
    if not (version / MANIFEST).exists():
        return None
    verify(path)
    files = {file.name: file.read_bytes() for file in version.iterdir() if file.is_file() and file.name[0] != "."}
    del files[MANIFEST]
    return {name: content for name, content in files.items() if name != "journal.jsonl"}


@pytest.mark.parametrize("linking", [True, False])
@pytest.mark.parametrize("before", [None, OLD])
@pytest.mark.parametrize("write", [write_folder, publish])
def test_a_kill_at_any_moment_leaves_the_old_model_or_the_new_one(
    tmp_path: Path,
    kills: Kills,
    write: Callable[[Path, dict[str, bytes]], None],
    before: dict[str, bytes] | None,
    linking: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_links(*_: Any) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "fsync", lambda _: None)  # slow; a kill, unlike a power cut, loses nothing
    if not linking:
        monkeypatch.setattr(os, "link", no_links)
    models: list[dict[str, bytes] | None] = []
    for after in range(1000):
        path = tmp_path / str(after)
        if before is not None:
            write_folder(path, before)
        elif write is publish:
            path.mkdir()
        if path.exists():
            (path / "journal.jsonl").write_text("a run's folder holds other things too")
        killed = kills.during(partial(write, path, NEW), after)
        models.append(model_in(path))
        write(path, NEW)
        assert model_in(path) == NEW
        assert (before is None and write is write_folder) or (path / "journal.jsonl").exists()
        assert not [file for file in path.iterdir() if file.name.startswith(".")]
        if not killed:
            break
    assert len(models) > 8
    first_new = models.index(NEW)
    assert all(model == before for model in models[:first_new])
    assert all(model == NEW for model in models[first_new:])


def test_an_interrupted_publish_is_readable_and_can_be_finished(tmp_path: Path, kills: Kills) -> None:
    path = tmp_path / "run"
    write_folder(path, OLD)
    after = next(
        n for n in range(1000) if kills.during(lambda: publish(path, NEW), n) and current_version(path) != path
    )
    assert after > 0
    assert model_in(path) == NEW
    finish_publishing(path)
    assert current_version(path) == path
    assert model_in(path) == NEW


def test_publishing_removes_optional_files_of_an_earlier_model_that_no_manifest_lists(tmp_path: Path) -> None:
    for name in ("source_tokenizer.json", "model.int8.safetensors", "heed.json", "notes.txt"):
        (tmp_path / name).write_text("left over")
    publish(tmp_path, NEW)
    assert {file.name for file in tmp_path.iterdir()} == {*NEW, MANIFEST, "notes.txt"}


@pytest.mark.parametrize("write", [write_folder, publish])
def test_a_full_disk_error_states_the_bytes_needed_and_keeps_the_old_model(
    tmp_path: Path, write: Callable[[Path, dict[str, bytes]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_half(path: Path, content: bytes) -> None:
        path.write_bytes(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    big = {**NEW, "model.safetensors": bytes(2_500_000)}
    path = tmp_path / "run"
    write_folder(path, OLD)
    monkeypatch.setattr(writing, "write_and_sync", write_half)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_200_000))
    with pytest.raises(FolderError, match=r"cannot be written: No space left .*: 2\.50 MB are needed, 1\.20 MB are"):
        write(path, big)
    assert model_in(path) == OLD
    assert not list(tmp_path.rglob("*.writing"))
