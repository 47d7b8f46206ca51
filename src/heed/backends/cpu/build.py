"""Compiles the C kernels for this processor on first use and caches the library, verified before it is loaded.

The cached file's name contains a hash of sources, flags, compiler and processor, and the sha256 of the file itself.
Before a new library is loaded here, a child process runs its self-test: a processor that lacks an instruction that it
advertises kills only the child.

Whoever can write to a folder from which code is loaded can run code as this user. So the cache is used only in folders
that belong to the user and are not writable by others, and each file is verified against its sha256 before loading; a
truncated or changed file is rebuilt. From the check to the load the folder is accessed through one open handle, so that
nobody who may rename a parent folder can swap it in between.
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
_TIMEOUT = 120  # seconds, of compiling and of the self-test
_SELF_TEST = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).heed_self_test())"


class CannotCompileError(Exception):
    """Why there is no compiled code; the caller falls back to torch."""


class _OpenFolder(NamedTuple):
    """An open folder; the path goes through the handle and stays valid when parent folders are renamed."""

    handle: int
    path: Path


def library(source: Path) -> ctypes.CDLL:
    """Compile and load a C file with its headers, or load it from the cache; its `heed_self_test` has returned 0."""
    if sys.platform != "linux":
        raise CannotCompileError("the C kernels are supported on Linux only")
    compiler = find_compiler()
    if compiler is None:
        raise CannotCompileError("there is no C compiler")
    texts = [file.read_text(encoding="utf-8") for file in sorted(source.parent.glob("*.[ch]"))]
    key = hashlib.sha256(f"{texts}{_FLAGS}{compiler}{_processor()}".encode()).hexdigest()[:32]
    refused = []
    for folder in _folders():
        try:
            with _open_private(folder) as opened:
                name = f"{source.stem}-{key}"
                loaded = ctypes.CDLL(str(_cached(opened, name) or _build(source, compiler, opened, name)))
        except OSError as error:
            refused.append(f"{folder}: {error}")
            continue
        for reason in refused:
            note_fallback(f"compiled code is cached in {folder}, because it cannot be in {reason}")
        return loaded
    raise CannotCompileError(f"no folder can cache compiled code: {'; '.join(dict.fromkeys(refused))}")


def _folders() -> Iterator[Path]:
    yield cache_folder() / "code"
    yield temporary_folder() / "code"


@contextmanager
def _open_private(folder: Path) -> Iterator[_OpenFolder]:
    """Open a folder that only this user can write to, created if missing; OSError: unsafe for code."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if (reason := why_not_private(os.fstat(handle))) is not None:
            raise PermissionError(reason)
        if os.fstatvfs(handle).f_flag & os.ST_NOEXEC:
            raise PermissionError("it is mounted noexec")
        yield _OpenFolder(handle, Path(f"/proc/self/fd/{handle}"))
    finally:
        os.close(handle)


def _cached(folder: _OpenFolder, name: str) -> Path | None:
    """The cached library if it is intact; anything else of this name is deleted."""
    for file in sorted(folder.path.glob(f"{name}-*.so")):
        state = file.lstat()
        reason = why_not_private(state) if stat.S_ISREG(state.st_mode) else "not a regular file"
        if reason is None and _verified_name(name, file) == file.name:
            return file
        note_fallback(f"the C kernels are compiled again, because of {file.name}: {reason or 'it is damaged'}")
        file.unlink()
    return None


def _build(source: Path, compiler: str, folder: _OpenFolder, name: str) -> Path:
    with tempfile.TemporaryDirectory(dir=folder.path) as building:
        built = Path(building) / f"{name}.so"
        _run([compiler, *_FLAGS, "-o", str(built), str(source), "-lm"], "the C compiler", folder)
        _run([sys.executable, "-I", "-c", _SELF_TEST, str(built)], "the self-test of the compiled code", folder)
        built.chmod(0o600)
        return built.replace(folder.path / _verified_name(name, built))  # atomic: other processes may build it too


def _verified_name(name: str, file: Path) -> str:
    """The name of a cached library with this file's content."""
    return f"{name}-{hashlib.sha256(file.read_bytes()).hexdigest()}.so"


def _run(command: list[str], program: str, folder: _OpenFolder) -> None:
    try:
        child = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=_TIMEOUT, check=False, pass_fds=(folder.handle,)
        )
    except subprocess.TimeoutExpired as error:
        raise CannotCompileError(f"{program} took more than {_TIMEOUT} seconds") from error
    except OSError as error:
        raise CannotCompileError(f"{program} cannot be run: {error}") from error
    if child.returncode:
        message = (child.stderr.strip().splitlines() or ["no message"])[0]
        raise CannotCompileError(f"{program} failed with exit code {child.returncode}: {message}")


def find_compiler() -> str | None:
    """The path of the C compiler: $CC, gcc, cc or clang."""
    names = (os.environ.get("CC"), "gcc", "cc", "clang")
    return next((path for name in names if name and (path := shutil.which(name))), None)


@cache
def _processor() -> str:
    """The architecture and instruction sets of this processor."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return platform.machine() + "".join(sorted({line for line in lines if line.startswith(("flags", "Features"))}))
