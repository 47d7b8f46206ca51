"""Builds and runs `engine_test.c`; `python -m tests.backends.cpu.engine_tests` does it under sanitizers.

The program runs every function of the engine without Python. So sanitizers see heed's code only, and it runs on
processors that are emulated.
"""

import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

from heed.backends.cpu.csrc.build import SOURCES, build, find_compiler

PROGRAM = Path(__file__).with_name("engine_test.c")
SANITIZERS = {
    "ASAN and UBSAN": "-fsanitize=address,undefined,float-cast-overflow",
    "TSAN": "-fsanitize=thread",
}
_TIMEOUT = 1200  # seconds of one run; TSAN takes half a minute for each instruction set


def build_engine_test(
    folder: Path, compiler: Sequence[str] = (), flags: Sequence[str] = (), only: Collection[str] = ()
) -> tuple[Path, list[str]]:
    """Build library and program in a folder; returns the program and the library's instruction sets."""
    isas = build(folder / "engine.so", compiler, flags, only)
    return build_program(folder, folder / "engine.so", compiler, flags), isas


def build_program(folder: Path, library: Path, compiler: Sequence[str] = (), flags: Sequence[str] = ()) -> Path:
    """Build only the program, for a library that exists."""
    command = [*(compiler or find_compiler()), "-std=gnu11", "-O1", *flags, f"-I{SOURCES}", str(PROGRAM), str(library)]
    program = folder / "engine_test"
    subprocess.run([*command, f"-Wl,-rpath,{library.parent}", "-lm", "-pthread", "-o", str(program)], check=True)
    return program


def run_engine_test(program: Path, *arguments: str, launcher: Sequence[str] = ()) -> tuple[int, list[str], str]:
    """The exit code, the lines of results, and what a sanitizer found; launcher: an emulator."""
    command = [*launcher, str(program), *arguments]
    child = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    return child.returncode, child.stdout.splitlines(), child.stderr


def sanitizer_flags(sanitizer: str) -> list[str]:
    """Compiler options of a sanitizer that ends the program at its first finding."""
    return [SANITIZERS[sanitizer], "-fno-sanitize-recover=all", "-g", "-O1"]


def sanitize() -> int:
    """Run the program under each sanitizer for each instruction set that this processor has; the number of failures."""
    failures = 0
    for sanitizer in SANITIZERS:
        with tempfile.TemporaryDirectory() as folder:
            program, isas = build_engine_test(Path(folder), flags=sanitizer_flags(sanitizer))
            for isa in isas:
                code, results, found = run_engine_test(program, isa)
                good = {0: "nothing found", 2: "skipped, this processor does not have it"}
                verdict = good.get(code, f"{results[-1][:100] if results else ''}\n{found}")
                print(f"{sanitizer}, {isa}: {verdict}", flush=True)
                failures += code not in {0, 2}
    return failures


if __name__ == "__main__":
    sys.exit(sanitize())
