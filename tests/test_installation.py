"""heed as a wheel: what it contains, where it runs, and that it can be built without a C compiler."""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pytest

from heed.backends.cpu.library import missing_for_compiled_code
from tests.interop.engine_models import folder

ROOT = Path(__file__).parents[1]
LIBRARY = "heed/backends/cpu/engine.so"
TRANSLATE = """
import sys, heed
translator = heed.load(sys.argv[1])
print(heed.__file__, translator.backend.choice.backend, translator("a dog"), sep="|")
"""

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


@pytest.mark.skipif(missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code()))
def test_a_wheel_translates_without_a_compiler_and_needs_an_old_glibc_only(tmp_path: Path) -> None:
    """As `make wheel` builds it."""
    machine = os.uname().machine
    platform = f"--config-settings=--build-option=--plat-name=manylinux_2_28_{machine}"
    wheel = build_wheel(tmp_path, platform, CFLAGS="-DHEED_OLD_GLIBC")
    assert wheel.name.endswith(f"-py3-none-manylinux_2_28_{machine}.whl")
    with ZipFile(wheel) as files:
        assert {LIBRARY, "heed/backends/cpu/csrc/heed.h"} <= set(files.namelist())
        versions = [tuple(map(int, text.split(b"."))) for text in re.findall(rb"\0GLIBC_([\d.]+)", files.read(LIBRARY))]
        assert max(versions) <= (2, 28)
        files.extractall(tmp_path / "installed")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed"), "PATH": str(tmp_path), "CC": "none"}
    model = folder(tmp_path / "model", d_model=32)
    run = subprocess.run(
        [sys.executable, "-c", TRANSLATE, str(model)], env=environment, capture_output=True, text=True, check=True
    )
    file, backend, _ = run.stdout.split("|")
    assert Path(file).is_relative_to(tmp_path)
    assert backend == "cpu"
    assert run.stderr == ""


def test_without_a_compiler_heed_can_be_installed_without_its_library(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, CC="no-such-compiler")
    with ZipFile(wheel) as files:
        assert LIBRARY not in files.namelist()
        assert "heed/backends/cpu/library.py" in files.namelist()
