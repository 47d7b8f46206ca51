"""Only a GPU can capture; run with one."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.training.captured_step import KINDS

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(
    not torch.cuda.is_available() or find_spec("triton") is None, reason="capturing a step needs a GPU and Triton"
)
def test_captured_steps_have_the_gradients_of_plain_ones_and_dropout_follows_from_the_seed() -> None:
    command = [sys.executable, "-m", "tests.training.captured_step"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = [f"{kind}: same gradients True, seeded dropout True" for kind in KINDS]
    assert run.stdout.splitlines() == said, run.stderr
