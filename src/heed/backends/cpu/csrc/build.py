"""Builds the engine: `heed.c` once for each instruction set, linked into one shared library. Needs only a C compiler.

setup.py runs this when heed is installed, the Makefile for its sanitizers: `python build.py --help`. The compiler may
be a cross compiler; its target decides which instruction sets are built. Messages of the compiler go to the logger
`heed.build`.
"""

import argparse
import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent
_LOG = logging.getLogger("heed.build")
# The flags of each instruction set by processor, fastest first. Every processor has "portable".
VARIANTS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "avx512vnni": ("-march=x86-64-v4", "-mavx512vnni"),
        "avx512": ("-march=x86-64-v4",),
        "avxvnni": ("-march=x86-64-v3", "-mavxvnni"),
        "avx2": ("-march=x86-64-v3",),
    },
    "aarch64": {"neon": ("-march=armv8.2-a+dotprod",)},
}
_FLAGS = ("-std=gnu11", "-O3", "-fopenmp-simd", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math")
_LINES_OF_MESSAGE = 20  # of a compiler, in an error
# On Windows gcc spills vectors with aligned moves to a stack that is not aligned (its bug 54412).
_FOR_WINDOWS = ("-Wa,-muse-unaligned-vector-move",)
# clang warns of each reduction to a maximum, which it does not vectorise where NaN may occur.
_WARNINGS = ("-Wall", "-Wextra", "-Wno-sign-compare", "-Wno-pass-failed")


class BuildError(Exception):
    """Why the engine cannot be built."""


def build(
    output: Path, compiler: Sequence[str] = (), flags: Sequence[str] = (), only: Collection[str] = ()
) -> list[str]:
    """Build the library and return its instruction sets.

    compiler: command and options; flags: also for linking; only: these instruction sets, unless empty.
    """
    compiler = compiler or find_compiler()
    target = _run([*compiler, "-dumpmachine"]).strip()
    variants = {isa: options for isa, options in _variants(target, only).items() if _accepts(compiler, isa, options)}
    is_windows = "mingw" in target or "windows" in target
    position = _FOR_WINDOWS if is_windows else ("-fPIC",)
    common = [*compiler, *_FLAGS, *_WARNINGS, *position, *flags, "-c"]
    tables = " ".join(f"X({isa})" for isa in variants)
    with tempfile.TemporaryDirectory() as folder:
        objects = [f"{folder}/{name}.o" for name in ("library", *variants)]
        commands = [[*common, f"-DHEED_ISAS={tables}", f'-DHEED_SOURCES="{sources_digest()}"', "library.c"]]
        commands += [[*common, *options, f"-DHEED_ISA={isa}", "heed.c"] for isa, options in variants.items()]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for message in pool.map(_run, ([*pair[0], "-o", pair[1]] for pair in zip(commands, objects, strict=True))):
                if message:
                    _LOG.warning("%s", message)
        library = Path(folder) / ("engine.dll" if is_windows else "engine.so")  # mingw appends .exe to other names
        system = ("-static", "-pthread") if is_windows else ("-lm", "-pthread")
        _run([*compiler, *flags, "-shared", "-o", str(library), *objects, *system])
        output.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, output.with_name(f".{output.name}"))
        output.with_name(f".{output.name}").replace(output)  # atomic: a process may have the old library open
    return list(variants)


def find_compiler() -> list[str]:
    """The command of the C compiler: $CC, gcc, cc or clang."""
    if chosen := shlex.split(os.environ.get("CC", "")):
        return chosen
    for name in ("gcc", "cc", "clang"):
        if path := shutil.which(name):
            return [path]
    raise BuildError("there is no C compiler")


def sources_digest(folder: Path = SOURCES) -> str:
    """The sha256 of what the library is built from: the C sources and this recipe."""
    digest = hashlib.sha256()
    for file in _sources(folder):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _sources(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.glob("*.[ch]"))
    yield folder / "build.py"


def _variants(target: str, only: Collection[str]) -> dict[str, tuple[str, ...]]:
    processor = target.partition("-")[0]
    variants = {**VARIANTS.get({"arm64": "aarch64"}.get(processor, processor), {}), "portable": ()}
    return {isa: options for isa, options in variants.items() if not only or isa in only}


def _accepts(compiler: Sequence[str], isa: str, options: Sequence[str]) -> bool:
    command = [*compiler, *options, "-E", "-x", "c", os.devnull]
    accepts = subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603
    if not accepts:
        _LOG.warning("heed's engine is built without code for %s, which %s is too old for", isa, compiler[0])
    return accepts


def _run(command: Sequence[str]) -> str:
    """Run a compiler; returns what it says."""
    try:
        child = subprocess.run(command, capture_output=True, text=True, check=False, cwd=SOURCES)  # noqa: S603
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run: {error}") from None
    if child.returncode:
        message = "\n".join(child.stderr.strip().splitlines()[:_LINES_OF_MESSAGE])
        raise BuildError(f"{shlex.join(command)} failed with exit code {child.returncode}:\n{message}")
    return child.stderr + child.stdout


def main() -> None:
    """Build the engine from the command line."""
    parser = argparse.ArgumentParser(description="Build heed's engine for CPUs.")
    parser.add_argument("output", type=Path, help="the shared library to write")
    parser.add_argument("--compiler", default="", help="command of the C compiler; default: $CC, gcc, cc or clang")
    parser.add_argument("--flags", default="", help="more flags, such as -fsanitize=address")
    options = parser.parse_args()
    try:
        isas = build(options.output.absolute(), shlex.split(options.compiler), shlex.split(options.flags))
    except BuildError as error:
        sys.exit(f"error: {error}")
    sys.stdout.write(f"{options.output}: {' '.join(isas)}\n")


if __name__ == "__main__":
    main()
