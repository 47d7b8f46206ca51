"""Triton kernels are tested on a GPU if there is one, else in Triton's interpreter if installed, else not at all."""

import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

from heed.backends.cpu.csrc.build import VARIANTS
from heed.backends.cpu.library import LIBRARY, _engine, engine, missing_for_compiled_code
from heed.errors import ConfigError

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is imported

if find_spec("triton") is None:
    collect_ignore = [f"cuda/test_{part}.py" for part in ("attention", "loss", "fused_qkv", "layer_norm", "triton_ops")]


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(params=[isa for isas in VARIANTS.values() for isa in isas] + ["portable"])
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Runs a test with each instruction set that this processor has."""
    if not LIBRARY.exists():
        pytest.skip(str(missing_for_compiled_code()))
    monkeypatch.setenv("HEED_ISA", request.param)
    _engine.cache_clear()
    try:
        assert engine().isa == request.param
    except ConfigError as error:
        pytest.skip(str(error))
    yield request.param
    _engine.cache_clear()
