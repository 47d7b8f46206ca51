"""Triton kernels are tested on a GPU if there is one, else in Triton's interpreter if installed, else not at all."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from heed.backends.cpu.build import _FLAGS, _processor
from heed.backends.cpu.library import _library

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is imported

if find_spec("triton") is None:
    collect_ignore = [f"cuda/test_{part}.py" for part in ("attention", "loss", "fused_qkv", "layer_norm", "triton_ops")]


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="session")
def avx2_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("avx2")


@pytest.fixture
def for_avx2(avx2_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compile the C code as for a processor that has AVX2 but not AVX-512."""
    if "avx2" not in _processor():
        pytest.skip("this processor has no AVX2")
    monkeypatch.setenv("XDG_CACHE_HOME", str(avx2_cache))
    monkeypatch.setattr("heed.backends.cpu.build._FLAGS", tuple(flag.replace("native", "x86-64-v3") for flag in _FLAGS))
    _library.cache_clear()
    yield
    _library.cache_clear()
