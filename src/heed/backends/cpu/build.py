"""C that is compiled on this machine for this machine, once, if there is a compiler.

What was compiled is kept under a name that says of what, by what, for which processor, and the sha256 of the file.
Before anybody loads it, a child process has run it: a processor that cannot do what it says it can kills the child.

Whoever can write to a folder from which code is loaded can run code as this user. So it is kept only in folders that
belong to the user and that nobody else can write to, and each file is compared with its sha256 before it is loaded: one
that was cut short or changed is made anew. From the check to the end the folder is reached through one open handle, so
that whoever may rename a folder above it cannot put another in its place.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

from heed.fallbacks import note_fallback
from heed.paths import cache_folder, temporary_folder, why_not_private

_FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fopenmp", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math")
_SECONDS = 120  # that compiling and trying out may take
_TRY = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).heed_trial())"


class CannotCompileError(Exception):
    """Why there is no compiled code here; whoever asks has another way."""


class _Held(NamedTuple):
    """A folder by its handle: the path leads there whatever becomes of the names above it."""

    handle: int
    path: Path


def library(source: Path) -> ctypes.CDLL:
    """The library that a file of C becomes, with the headers beside it; its `heed_trial` has been seen to return 0."""
    if sys.platform != "linux":
        raise CannotCompileError("compiled code was tried on Linux only")
    compiler = find_compiler()
    if compiler is None:
        raise CannotCompileError("there is no C compiler")
    texts = [file.read_text(encoding="utf-8") for file in sorted(source.parent.glob("*.[ch]"))]
    key = hashlib.sha256(f"{texts}{_FLAGS}{compiler}{_processor()}".encode()).hexdigest()[:32]
    refused = []
    for folder in _folders():
        try:
            with _private(folder) as held:
                kept = _kept(held, f"{source.stem}-{key}") or _build(source, compiler, held, f"{source.stem}-{key}")
                found = ctypes.CDLL(str(kept))
        except OSError as error:
            refused.append(f"{folder}: {error}")
            continue
        for reason in refused:
            note_fallback(f"compiled code is kept in {folder}, since it cannot be in {reason}")
        return found
    raise CannotCompileError(f"there is no folder to keep compiled code in: {'; '.join(dict.fromkeys(refused))}")


def _folders() -> Iterator[Path]:
    yield cache_folder() / "code"
    yield temporary_folder() / "code"


@contextmanager
def _private(folder: Path) -> Iterator[_Held]:
    """A folder of this user's own, made if it is not there; OSError: code cannot be kept in it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if (reason := why_not_private(os.fstat(handle))) is not None:
            raise PermissionError(reason)
        if os.fstatvfs(handle).f_flag & os.ST_NOEXEC:
            raise PermissionError("it is mounted noexec")
        yield _Held(handle, Path(f"/proc/self/fd/{handle}"))
    finally:
        os.close(handle)


def _kept(held: _Held, name: str) -> Path | None:
    """What was compiled before, if it is as it was then; anything else of this name is removed."""
    for file in sorted(held.path.glob(f"{name}-*.so")):
        state = file.lstat()
        reason = why_not_private(state) if stat.S_ISREG(state.st_mode) else "it is no file"
        if reason is None and _named(name, file) == file.name:
            return file
        note_fallback(f"compiled code is made anew, since {file.name}: {reason or 'it was damaged'}")
        file.unlink()
    return None


def _build(source: Path, compiler: str, held: _Held, name: str) -> Path:
    with tempfile.TemporaryDirectory(dir=held.path) as building:
        made = Path(building) / f"{name}.so"
        _done([compiler, *_FLAGS, "-o", str(made), str(source), "-lm"], "compiling", held)
        _done([sys.executable, "-I", "-c", _TRY, str(made)], "what was compiled", held)
        made.chmod(0o600)
        return made.replace(held.path / _named(name, made))  # all at once: others may be building it too


def _named(name: str, file: Path) -> str:
    """The name of a file with this content."""
    return f"{name}-{hashlib.sha256(file.read_bytes()).hexdigest()}.so"


def _done(command: list[str], what: str, held: _Held) -> None:
    try:
        child = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=_SECONDS, check=False, pass_fds=(held.handle,)
        )
    except subprocess.TimeoutExpired as error:
        raise CannotCompileError(f"{what} took more than {_SECONDS} seconds") from error
    except OSError as error:
        raise CannotCompileError(f"{what} cannot be run: {error}") from error
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
