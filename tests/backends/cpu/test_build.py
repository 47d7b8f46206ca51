import hashlib
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from heed.backends.cpu import build as compiled
from heed.backends.cpu.build import CannotCompileError, library
from heed.fallbacks import fallbacks

GOOD = "int heed_self_test(void) { return 0; } int seven(void) { return 7; }"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("heed.paths.tempfile.gettempdir", lambda: str(tmp_path / "temporary"))
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
        tmp_path / "two",
        '#include "number.h"\nint heed_self_test(void) { return 0; } int number(void) { return NUMBER; }',
    )
    for number in (3, 4):
        (file.parent / "number.h").write_text(f"#define NUMBER {number}\n", encoding="utf-8")
        assert library(file).number() == number


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("int heed_self_test(void) { return 1; }", "the self-test of the compiled code failed with exit code 1"),
        (
            "int heed_self_test(void) { __builtin_trap(); }",
            "the self-test of the compiled code failed with exit code -",
        ),
        ("int heed_self_test(void) { return nothing; }", "the C compiler failed with exit code 1: .*"),
    ],
    ids=["wrong", "dies", "is-no-c"],
)
def test_what_does_not_work_in_a_child_is_not_loaded(tmp_path: Path, text: str, said: str) -> None:
    file = source(tmp_path / "three", text)
    with pytest.raises(CannotCompileError, match=said):
        library(file)
    assert list((tmp_path / "cache" / "heed" / "code").iterdir()) == []


def test_without_a_compiler_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heed.backends.cpu.build.shutil.which", lambda _name: None)
    with pytest.raises(CannotCompileError, match="there is no C compiler"):
        library(source(tmp_path / "four", GOOD))


def test_a_home_that_cannot_be_written_to_is_no_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert library(source(tmp_path / "five", GOOD)).seven() == 7
    assert len(list((tmp_path / "temporary").glob("heed-*/code/seven-*.so"))) == 1
    assert any(str(tmp_path / "file") in note for note in fallbacks())


def kept(tmp_path: Path) -> Path:
    """The one file that was compiled."""
    (file,) = (tmp_path / "cache" / "heed" / "code").iterdir()
    return file


def plant(file: Path) -> None:
    """Put other code in the place of a library, under a name that vouches for it."""
    evil = file.parent.parent / "evil.c"
    evil.write_text("int heed_self_test(void) { return 0; } int seven(void) { return 666; }")
    subprocess.run([str(compiled.find_compiler()), "-shared", "-fPIC", "-o", str(file), str(evil)], check=True)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    file.rename(file.with_name(f"{file.name.rpartition('-')[0]}-{digest}.so"))


@pytest.mark.parametrize("mode", [0o770, 0o720, 0o702, 0o777])
def test_code_is_not_loaded_from_a_folder_that_others_can_write_to(tmp_path: Path, mode: int) -> None:
    file = source(tmp_path / "seven", GOOD)
    library(file)
    plant(kept(tmp_path))
    kept(tmp_path).chmod(0o600)
    kept(tmp_path).parent.chmod(mode)
    assert library(file).seven() == 7
    assert any("others can write to it" in note and f"{mode:o}" in note for note in fallbacks())


def test_code_is_not_loaded_from_a_file_that_others_can_write_to(tmp_path: Path) -> None:
    file = source(tmp_path / "eight", GOOD)
    library(file)
    plant(kept(tmp_path))
    kept(tmp_path).chmod(0o666)
    assert library(file).seven() == 7
    assert kept(tmp_path).stat().st_mode & 0o777 == 0o600


def test_a_folder_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    file = source(tmp_path / "nine", GOOD)
    library(file)
    plant(kept(tmp_path))
    folder = kept(tmp_path).parent
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    assert library(file).seven() == 7


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = source(tmp_path / "ten", GOOD)
    library(file)
    monkeypatch.setattr("heed.paths.os.getuid", lambda: 4242)
    said = r"no folder can cache compiled code: .*it belongs to user \d+, not to 4242"
    with pytest.raises(CannotCompileError, match=said):
        library(file)


@pytest.mark.parametrize("left", [0, 4, 4096, -1], ids=["empty", "short", "a page", "changed"])
def test_a_damaged_file_is_made_anew_and_never_loaded(tmp_path: Path, left: int) -> None:
    file = source(tmp_path / "eleven", GOOD)
    library(file)
    name, whole = kept(tmp_path).name, kept(tmp_path).read_bytes()
    kept(tmp_path).unlink()
    (tmp_path / "cache" / "heed" / "code" / name).write_bytes(whole[:left] + (b"?" if left < 0 else b""))
    assert library(file).seven() == 7
    assert kept(tmp_path).read_bytes() == whole
    assert kept(tmp_path).name == name
    assert any(name in note for note in fallbacks())


def test_where_nothing_may_be_executed_another_folder_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Flags(NamedTuple):
        f_flag: int

    handles: list[int] = []

    def only_the_first(handle: int) -> Flags:
        handles.append(handle)
        return Flags(os.ST_NOEXEC if len(handles) == 1 else 0)

    monkeypatch.setattr("heed.backends.cpu.build.os.fstatvfs", only_the_first)
    assert library(source(tmp_path / "twelve", GOOD)).seven() == 7
    assert len(list((tmp_path / "temporary").glob("heed-*/code/seven-*.so"))) == 1
    assert any("it is mounted noexec" in note for note in fallbacks())
    monkeypatch.setattr("heed.backends.cpu.build.os.fstatvfs", lambda _: Flags(os.ST_NOEXEC))
    with pytest.raises(CannotCompileError, match=r"no folder can cache compiled code: .*noexec.*noexec"):
        library(source(tmp_path / "twelve", GOOD))


def test_a_compiler_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("cc", 1)

    monkeypatch.setattr("heed.backends.cpu.build.subprocess.run", hang)
    with pytest.raises(CannotCompileError, match="the C compiler took more than 120 seconds"):
        library(source(tmp_path / "six", GOOD))
