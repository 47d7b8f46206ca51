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


def write_source(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / "seven.c"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_source_file_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_source(tmp_path / "one", GOOD)
    assert library(file).seven() == 7
    monkeypatch.setattr(compiled, "_build", lambda *_: pytest.fail("it was compiled again"))
    assert library(file).seven() == 7


def test_a_changed_header_is_compiled_again(tmp_path: Path) -> None:
    file = write_source(
        tmp_path / "two",
        '#include "number.h"\nint heed_self_test(void) { return 0; } int number(void) { return NUMBER; }',
    )
    for number in (3, 4):
        (file.parent / "number.h").write_text(f"#define NUMBER {number}\n", encoding="utf-8")
        assert library(file).number() == number


@pytest.mark.parametrize(
    ("text", "message"),
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
def test_a_library_whose_build_or_self_test_fails_is_not_loaded(tmp_path: Path, text: str, message: str) -> None:
    file = write_source(tmp_path / "three", text)
    with pytest.raises(CannotCompileError, match=message):
        library(file)
    assert list((tmp_path / "cache" / "heed" / "code").iterdir()) == []


def test_a_missing_compiler_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heed.backends.cpu.build.shutil.which", lambda _name: None)
    with pytest.raises(CannotCompileError, match="there is no C compiler"):
        library(write_source(tmp_path / "four", GOOD))


def test_a_cache_folder_that_cannot_be_written_is_replaced_by_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert library(write_source(tmp_path / "five", GOOD)).seven() == 7
    assert len(list((tmp_path / "temporary").glob("heed-*/code/seven-*.so"))) == 1
    assert any(str(tmp_path / "file") in note for note in fallbacks())


def cached_library(tmp_path: Path) -> Path:
    """The only library in the cache."""
    (file,) = (tmp_path / "cache" / "heed" / "code").iterdir()
    return file


def replace_by_other_code(file: Path) -> None:
    """Replace a library by one compiled from other code, under a name with the digest of the new file."""
    other_source = file.parent.parent / "evil.c"
    other_source.write_text("int heed_self_test(void) { return 0; } int seven(void) { return 666; }")
    subprocess.run([str(compiled.find_compiler()), "-shared", "-fPIC", "-o", str(file), str(other_source)], check=True)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    file.rename(file.with_name(f"{file.name.rpartition('-')[0]}-{digest}.so"))


@pytest.mark.parametrize("mode", [0o770, 0o720, 0o702, 0o777])
def test_code_is_not_loaded_from_a_folder_that_others_can_write_to(tmp_path: Path, mode: int) -> None:
    file = write_source(tmp_path / "seven", GOOD)
    library(file)
    replace_by_other_code(cached_library(tmp_path))
    cached_library(tmp_path).chmod(0o600)
    cached_library(tmp_path).parent.chmod(mode)
    assert library(file).seven() == 7
    assert any("others can write to it" in note and f"{mode:o}" in note for note in fallbacks())


def test_code_is_not_loaded_from_a_file_that_others_can_write_to(tmp_path: Path) -> None:
    file = write_source(tmp_path / "eight", GOOD)
    library(file)
    replace_by_other_code(cached_library(tmp_path))
    cached_library(tmp_path).chmod(0o666)
    assert library(file).seven() == 7
    assert cached_library(tmp_path).stat().st_mode & 0o777 == 0o600


def test_a_folder_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    file = write_source(tmp_path / "nine", GOOD)
    library(file)
    replace_by_other_code(cached_library(tmp_path))
    folder = cached_library(tmp_path).parent
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    assert library(file).seven() == 7


def test_a_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_source(tmp_path / "ten", GOOD)
    library(file)
    monkeypatch.setattr("heed.paths.os.getuid", lambda: 4242)
    message = r"no folder can cache compiled code: .*it belongs to user \d+, not to 4242"
    with pytest.raises(CannotCompileError, match=message):
        library(file)


@pytest.mark.parametrize("kept_bytes", [0, 4, 4096, -1], ids=["empty", "short", "a page", "changed"])
def test_a_damaged_library_is_compiled_again_and_never_loaded(tmp_path: Path, kept_bytes: int) -> None:
    file = write_source(tmp_path / "eleven", GOOD)
    library(file)
    name, whole = cached_library(tmp_path).name, cached_library(tmp_path).read_bytes()
    cached_library(tmp_path).unlink()
    (tmp_path / "cache" / "heed" / "code" / name).write_bytes(whole[:kept_bytes] + (b"?" if kept_bytes < 0 else b""))
    assert library(file).seven() == 7
    assert cached_library(tmp_path).read_bytes() == whole
    assert cached_library(tmp_path).name == name
    assert any(name in note for note in fallbacks())


def test_a_noexec_folder_is_replaced_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Flags(NamedTuple):
        f_flag: int

    handles: list[int] = []

    def only_the_first(handle: int) -> Flags:
        handles.append(handle)
        return Flags(os.ST_NOEXEC if len(handles) == 1 else 0)

    monkeypatch.setattr("heed.backends.cpu.build.os.fstatvfs", only_the_first)
    assert library(write_source(tmp_path / "twelve", GOOD)).seven() == 7
    assert len(list((tmp_path / "temporary").glob("heed-*/code/seven-*.so"))) == 1
    assert any("it is mounted noexec" in note for note in fallbacks())
    monkeypatch.setattr("heed.backends.cpu.build.os.fstatvfs", lambda _: Flags(os.ST_NOEXEC))
    with pytest.raises(CannotCompileError, match=r"no folder can cache compiled code: .*noexec.*noexec"):
        library(write_source(tmp_path / "twelve", GOOD))


def test_a_compiler_that_hangs_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("cc", 1)

    monkeypatch.setattr("heed.backends.cpu.build.subprocess.run", hang)
    with pytest.raises(CannotCompileError, match="the C compiler took more than 120 seconds"):
        library(write_source(tmp_path / "six", GOOD))
