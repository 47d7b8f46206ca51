"""C that is compiled on this machine for this machine, once, if there is a compiler.

What was compiled is kept in the user's cache under a name that says of what, by what and for which processor. Before
anybody loads it, a child process has run it: a processor that cannot do what it says it can kills the child.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from heed.caches import cache_folder

_FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fopenmp", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math")
_SECONDS = 120  # that compiling and trying out may take
_TRY = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).heed_trial())"


class CannotCompileError(Exception):
    """Why there is no compiled code here; whoever asks has another way."""


def library(source: Path) -> ctypes.CDLL:
    """The library that a file of C becomes, with the headers beside it; its `heed_trial` has been seen to return 0."""
    if sys.platform != "linux":
        raise CannotCompileError("compiled code was tried on Linux only")
    compiler = find_compiler()
    if compiler is None:
        raise CannotCompileError("there is no C compiler")
    texts = [file.read_text(encoding="utf-8") for file in sorted(source.parent.glob("*.[ch]"))]
    name = hashlib.sha256(f"{texts}{_FLAGS}{compiler}{_processor()}".encode()).hexdigest()[:32]
    for folder in (cache_folder(), Path(tempfile.gettempdir()) / f"heed-{os.getuid()}"):
        kept = folder / f"{source.stem}-{name}.so"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if folder.stat().st_uid == os.getuid():  # nobody else's code
                if not kept.exists():
                    _build(source, compiler, kept)
                return ctypes.CDLL(str(kept))
        except OSError:  # a home that cannot be written to
            continue
    raise CannotCompileError("there is no folder to keep compiled code in")


def _build(source: Path, compiler: str, kept: Path) -> None:
    with tempfile.TemporaryDirectory(dir=kept.parent) as building:
        made = Path(building) / kept.name
        _done([compiler, *_FLAGS, "-o", str(made), str(source), "-lm"], "compiling")
        _done([sys.executable, "-I", "-c", _TRY, str(made)], "what was compiled")
        made.replace(kept)  # all at once: others may be building it too


def _done(command: list[str], what: str) -> None:
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)  # noqa: S603
    except subprocess.TimeoutExpired as error:
        raise CannotCompileError(f"{what} took more than {_SECONDS} seconds") from error
    if child.returncode:
        said = (child.stderr.strip().splitlines() or ["without a word"])[0]
        raise CannotCompileError(f"{what} failed with exit code {child.returncode}: {said}")


def find_compiler() -> str | None:
    """The C compiler, if there is one."""
    names = (os.environ.get("CC"), "gcc", "cc", "clang")
    return next((found for name in names if name and (found := shutil.which(name))), None)


@cache
def _processor() -> str:
    """What says what code a processor can run."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return platform.machine() + "".join(sorted({line for line in lines if line.startswith(("flags", "Features"))}))
