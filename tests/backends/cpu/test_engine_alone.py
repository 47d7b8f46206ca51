"""The engine without Python: under sanitizers, on an emulated ARM processor, compiled for Windows."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from heed.backends.cpu.csrc.build import SOURCES, BuildError, build, find_compiler
from heed.backends.cpu.library import LIBRARY, engine, missing_for_compiled_code
from tests.backends.cpu.engine_tests import (
    SANITIZERS,
    build_engine_test,
    build_program,
    run_engine_test,
    sanitizer_flags,
)

ARM_COMPILER, EMULATOR, ARM_LIBRARIES = "aarch64-linux-gnu-gcc", "qemu-aarch64", "/usr/aarch64-linux-gnu"
WINDOWS_COMPILER = "x86_64-w64-mingw32-gcc"

pytestmark = pytest.mark.skipif(missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code()))


def skip_without(program: str, package: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"no {program} here: apt-get install {package}")


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_sanitizers_find_nothing(sanitizer: str, tmp_path: Path) -> None:
    """In small; `make sanitize` runs everything for every instruction set."""
    try:
        program, isas = build_engine_test(tmp_path, flags=sanitizer_flags(sanitizer), only=[engine().isa])
    except (BuildError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this compiler has no {sanitizer}: {error}")
    code, results, found = run_engine_test(program, *isas, "small")
    assert code == 0, (results[-1:], found)


def assert_same_results(results: list[str], expected: list[str]) -> None:
    """Equal names, tokens and counts, and numbers that differ by rounding only."""
    assert len(results) == len(expected) > 50
    for line, expected_line in zip(results, expected, strict=True):
        (name, *numbers), (expected_name, *expected_numbers) = line.split(), expected_line.split()
        assert name == expected_name
        assert list(map(float, numbers)) == pytest.approx(list(map(float, expected_numbers)), abs=5e-4, rel=1e-4), name


def test_neon_and_portable_code_on_arm_compute_what_this_processor_does(tmp_path: Path) -> None:
    skip_without(EMULATOR, "qemu-user")
    skip_without(ARM_COMPILER, "gcc-aarch64-linux-gnu libc6-dev-arm64-cross")
    (tmp_path / "arm").mkdir()
    program, isas = build_engine_test(tmp_path / "arm", [ARM_COMPILER])
    assert isas == ["neon", "portable"]
    native_program = build_program(tmp_path, LIBRARY)
    for isa, extent in (("neon", []), ("portable", ["small"])):
        code, expected, found = run_engine_test(native_program, engine().isa, *extent)
        assert code == 0, (expected[-1:], found)
        code, results, found = run_engine_test(program, isa, *extent, launcher=[EMULATOR, "-L", ARM_LIBRARIES])
        assert code == 0, (results[-1:], found)
        assert_same_results(results, expected)
    old = run_engine_test(program, "neon", launcher=[EMULATOR, "-cpu", "cortex-a53", "-L", ARM_LIBRARIES])
    assert old == (2, ["neon is not available; built for: neon portable "], "")


def test_the_library_can_be_compiled_for_windows(tmp_path: Path) -> None:
    skip_without(WINDOWS_COMPILER, "gcc-mingw-w64-x86-64")
    library = tmp_path / "engine.dll"
    assert build(library, [WINDOWS_COMPILER], only=["avx512vnni", "portable"]) == ["avx512vnni", "portable"]
    listing = subprocess.run(
        [WINDOWS_COMPILER.replace("gcc", "objdump"), "-p", str(library)], capture_output=True, text=True, check=True
    ).stdout
    needed = {name.lower() for name in re.findall(r"DLL Name: (\S+)", listing)}
    assert needed <= {"kernel32.dll", "msvcrt.dll", "ucrtbase.dll"}
    assert "heed_engine" in listing


@pytest.mark.slow
def test_the_library_for_windows_computes_the_same_under_wine(tmp_path: Path) -> None:
    skip_without(WINDOWS_COMPILER, "gcc-mingw-w64-x86-64")
    skip_without("wine", "wine wine64")
    isas = [engine().isa, "portable"]
    build(tmp_path / "engine.dll", [WINDOWS_COMPILER], only=isas)
    program = build_program(tmp_path, tmp_path / "engine.dll", [WINDOWS_COMPILER], ["-static"])
    native_program = build_program(tmp_path, LIBRARY)
    for isa in isas:
        code, results, found = run_engine_test(program.with_suffix(".exe"), isa, launcher=["wine"])
        assert code == 0, (results[-1:], found)
        assert_same_results(results, run_engine_test(native_program, isa)[1])


def test_the_header_compiles_alone_and_without_warnings(tmp_path: Path) -> None:
    (tmp_path / "user.c").write_text('#include "heed.h"\nint main(void) { return !heed_isas(); }\n')
    strict = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    program = [f"-I{SOURCES}", str(tmp_path / "user.c"), str(LIBRARY)]
    subprocess.run([*find_compiler(), *strict, *program, "-o", str(tmp_path / "user")], check=True)


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf here")
def test_the_library_needs_libc_only_and_exports_only_its_header() -> None:
    dynamic = subprocess.run(["readelf", "--dynamic", str(LIBRARY)], capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"NEEDED.*\[([a-z]+)[\w.-]*\]", dynamic))
    assert needed <= {"libc", "libm", "libpthread", "ld"}
    symbols = subprocess.run(
        ["readelf", "--dyn-syms", "--wide", str(LIBRARY)], capture_output=True, text=True, check=True
    ).stdout
    exported = {line.split()[-1] for line in symbols.splitlines() if "GLOBAL" in line and " UND " not in line}
    functions = set(re.findall(r"^HEED_API .*?(heed_\w+)\(", (SOURCES / "heed.h").read_text(), re.M))
    assert exported == functions
