"""heed as a wheel: what it contains, where it runs, and that it can be built without a C compiler."""

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pytest

import heed
from heed.backends.cpu.library import missing_for_compiled_code
from tests.installed import installed_packages
from tests.interop.engine_models import folder

ROOT = Path(__file__).parents[1]
LIBRARY = "heed/backends/cpu/engine.so"
NOT_FOR_TRANSLATING = {"torch", "jaxtyping"}  # on a CPU with the engine

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or find_spec("setuptools") is None, reason="builds a wheel for Linux, with setuptools"
)


def build_wheel(tmp_path: Path, *options: str, **environment: str) -> Path:
    """The wheel that pip builds from a copy of this checkout without its library, with the packages that are here."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", *options]
    subprocess.run(
        [*command, "--disable-pip-version-check", "--wheel-dir", str(tmp_path), str(source)],
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    return wheel


def environment_without_torch(path: Path) -> tuple[Path, Path]:
    """An empty virtual environment with the packages that heed requires, but torch: its programs and its packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
    programs = path / "bin"
    packages = path / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for name in installed_packages():
        try:
            files = distribution(name).files or []
        except PackageNotFoundError:  # required on another system only
            continue
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"} if name not in NOT_FOR_TRANSLATING else ():
            (packages / top).symlink_to(str(distribution(name).locate_file(top)))
    return programs, packages


@pytest.mark.skipif(missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code()))
def test_a_wheel_translates_without_compiler_and_torch_and_needs_an_old_glibc_only(tmp_path: Path) -> None:
    """As `make wheel` builds it."""
    machine = os.uname().machine
    platform = f"--config-settings=--build-option=--plat-name=manylinux_2_28_{machine}"
    wheel = build_wheel(tmp_path, platform, CFLAGS="-DHEED_OLD_GLIBC")
    assert wheel.name.endswith(f"-py3-none-manylinux_2_28_{machine}.whl")
    with ZipFile(wheel) as files:
        assert {LIBRARY, "heed/backends/cpu/csrc/heed.h"} <= set(files.namelist())
        versions = [tuple(map(int, text.split(b"."))) for text in re.findall(rb"\0GLIBC_([\d.]+)", files.read(LIBRARY))]
        assert max(versions) <= (2, 28)
    programs, packages = environment_without_torch(tmp_path / "environment")
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    model = folder(tmp_path / "model", d_model=32)
    environment = {"PATH": str(programs), "HOME": str(tmp_path), "CC": "none"}
    run = partial(subprocess.run, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    translated = run([programs / "heed", "translate", "--verbose", str(model)], input="a dog\n")
    assert translated.stdout == f"{heed.load(model)('a dog')}\n"
    assert translated.stderr.startswith("note: backend cpu")
    assert run([programs / "python", "-c", "import torch"]).stderr.endswith("No module named 'torch'\n")
    assert (packages / LIBRARY).is_file()


def test_without_a_compiler_heed_can_be_installed_without_its_library(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, CC="no-such-compiler")
    with ZipFile(wheel) as files:
        assert LIBRARY not in files.namelist()
        assert "heed/backends/cpu/library.py" in files.namelist()
