"""The cache folder and its fallbacks: always private to the user, and a note where it is not the usual one."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from heed import paths
from heed.errors import ConfigError
from heed.fallbacks import fallbacks, note_fallback
from heed.paths import cache_folder, temporary_folder


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("heed.paths.tempfile.gettempdir", lambda: str(folder))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return folder


def test_the_cache_folder_is_in_xdg_cache_home_or_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "heed"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own" / "heed"
    assert cache_folder().stat().st_mode & 0o777 == 0o700


def test_without_a_home_the_cache_is_a_private_temporary_folder_with_a_note(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("heed.paths.Path.home", no_home)
    folder = cache_folder()
    assert folder == temporary / f"heed-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    note = f"no cache folder (Could not determine home directory.): using {folder}, which may be deleted"
    assert any(fallback.startswith(note) for fallback in fallbacks())
    assert cache_folder() == folder
    assert len([record for record in caplog.records if record.message.startswith(f"note: {note}")]) == 1


def test_without_a_writable_home_the_cache_is_a_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "read-only"))
    monkeypatch.setattr("heed.paths.os.access", lambda *_: False)  # tests may run as root, who may write anywhere
    assert cache_folder().name == f"heed-{os.getuid()}"
    assert any(f"{tmp_path}/read-only/heed is not writable" in note for note in fallbacks())


@pytest.mark.parametrize("kind", ["a file", "writable", "a link"])
def test_a_temporary_folder_prepared_by_another_user_is_not_used(temporary: Path, kind: str) -> None:
    planted = temporary / f"heed-{os.getuid()}"
    if kind == "a file":
        planted.write_text("")
    elif kind == "a link":
        (temporary / "theirs").mkdir()
        planted.symlink_to(temporary / "theirs")
    else:
        planted.mkdir()
        planted.chmod(0o777)
    paths._process_folder.cache_clear()
    folder = temporary_folder()
    assert folder != planted
    assert folder.stat().st_mode & 0o777 == 0o700
    assert temporary_folder() == folder


def test_without_a_temporary_folder_the_error_says_to_set_tmpdir(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr("heed.paths.tempfile.gettempdir", none)
    with pytest.raises(ConfigError, match=r"no folder for temporary files: No usable temporary .*; set TMPDIR"):
        temporary_folder()


def test_a_fallback_is_logged_once_and_recorded(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "heed"):
        for _ in range(3):
            note_fallback("one thing is slower")
    assert [record.message for record in caplog.records] == ["note: one thing is slower"]
    assert fallbacks()[-1] == "one thing is slower"


def test_a_note_is_one_plain_line_on_standard_error() -> None:
    command = "from heed.fallbacks import note_fallback; note_fallback('slower'); note_fallback('slower')"
    child = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert (child.stdout, child.stderr) == ("", "note: slower\n")
