import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
COMPILER = os.environ.get("CXX", "g++")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"torch.compile needs a C++ compiler; no {COMPILER} found")
def test_padded_and_packed_training_steps_compile_to_one_graph_with_equal_gradients(device: torch.device) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.model.compiled_step", str(device)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    expected = [f"{layout} training step compiled: same loss and gradients" for layout in ("padded", "packed")]
    assert run.stdout.splitlines() == expected, run.stderr
