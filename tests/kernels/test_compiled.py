import subprocess
from pathlib import Path

import pytest

from heed.kernels import compiled
from heed.kernels.compiled import CannotCompileError, library

GOOD = "int heed_trial(void) { return 0; } int seven(void) { return 7; }"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if compiled.find_compiler() is None:
        pytest.skip("there is no C compiler")


def source(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / "seven.c"
    file.write_text(text, encoding="utf-8")
    return file


def test_c_becomes_a_library_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = source(tmp_path / "one", GOOD)
    assert library(file).seven() == 7
    monkeypatch.setattr(compiled, "_build", lambda *_: pytest.fail("it was there already"))
    assert library(file).seven() == 7


def test_a_header_beside_it_counts_too(tmp_path: Path) -> None:
    file = source(
        tmp_path / "two", '#include "number.h"\nint heed_trial(void) { return 0; } int number(void) { return NUMBER; }'
    )
    for number in (3, 4):
        (file.parent / "number.h").write_text(f"#define NUMBER {number}\n", encoding="utf-8")
        assert library(file).number() == number


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("int heed_trial(void) { return 1; }", "what was compiled failed with exit code 1"),
        ("int heed_trial(void) { __builtin_trap(); }", "what was compiled failed with exit code -"),
        ("int heed_trial(void) { return nothing; }", "compiling failed with exit code 1: .*"),
    ],
    ids=["wrong", "dies", "is-no-c"],
)
def test_what_does_not_work_in_a_child_is_not_loaded(tmp_path: Path, text: str, said: str) -> None:
    file = source(tmp_path / "three", text)
    with pytest.raises(CannotCompileError, match=said):
        library(file)
    assert list((tmp_path / "cache" / "heed").iterdir()) == []


def test_without_a_compiler_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heed.kernels.compiled.shutil.which", lambda _name: None)
    with pytest.raises(CannotCompileError, match="there is no C compiler"):
        library(source(tmp_path / "four", GOOD))


def test_a_home_that_cannot_be_written_to_is_no_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("heed.kernels.compiled.tempfile.gettempdir", lambda: str(tmp_path / "elsewhere"))
    assert library(source(tmp_path / "five", GOOD)).seven() == 7
    assert len(list((tmp_path / "elsewhere").glob("heed-*/seven-*.so"))) == 1


def test_a_compiler_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("cc", 1)

    monkeypatch.setattr("heed.kernels.compiled.subprocess.run", hang)
    with pytest.raises(CannotCompileError, match="compiling took more than 120 seconds"):
        library(source(tmp_path / "six", GOOD))
