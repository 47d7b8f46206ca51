"""Triton programs are proven on a GPU if there is one, else in Triton's interpreter if it is there, else not at all."""

import os
from importlib.util import find_spec

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is imported

if find_spec("triton") is None:
    collect_ignore = ["test_attention.py", "test_cross_entropy.py", "test_layer_norm.py", "test_triton_parts.py"]


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
