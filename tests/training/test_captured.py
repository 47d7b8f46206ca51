"""CUDA graphs of training steps; runs where there is a GPU."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.training.captured_step import CASES

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(
    not torch.cuda.is_available() or find_spec("triton") is None, reason="capturing a step needs a GPU and Triton"
)
def test_captured_steps_have_the_gradients_of_eager_ones_and_dropout_follows_the_seed() -> None:
    command = [sys.executable, "-m", "tests.training.captured_step"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    expected = [f"{case}: same gradients True, seeded dropout True" for case in CASES]
    assert run.stdout.splitlines() == expected, run.stderr
