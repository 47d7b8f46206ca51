"""Builds the engine in C when heed is installed; everything else about the package is in pyproject.toml.

Without a C compiler the installation succeeds, and heed runs on torch's operators and says so. $CC chooses the
compiler, $CFLAGS and $LDFLAGS are passed on.
"""

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

FOLDER = Path("src/heed/backends/cpu/csrc")
sys.path.insert(0, str(FOLDER))

from build import BuildError, build  # noqa: E402 - heed itself cannot be imported before it is installed


class BuildEngine(build_ext):  # type: ignore[misc]
    """Builds a library of plain C, which every version of Python can load, instead of an extension module."""

    def build_extension(self, ext: Extension) -> None:
        try:
            flags = shlex.split(f"{os.environ.get('CFLAGS', '')} {os.environ.get('LDFLAGS', '')}")
            build(Path(self.get_ext_fullpath(ext.name)).absolute(), flags=flags)
        except BuildError as error:
            raise CompileError(f"heed is installed without its C library, and runs slower: {error}") from None

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + (".dll" if sys.platform == "win32" else ".so")


class PlatformWheel(bdist_wheel):  # type: ignore[misc]
    """A wheel for one platform and any version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        platform: Any = super().get_tag()[2]
        return "py3", "none", platform


setup(
    cmdclass={"build_ext": BuildEngine, "bdist_wheel": PlatformWheel},
    ext_modules=[Extension("heed.backends.cpu.engine", sorted(map(str, FOLDER.glob("*.c"))), optional=True)],
)
