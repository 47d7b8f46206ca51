import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
COMPILER = os.environ.get("CXX", "g++")


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"torch.compile needs a C++ compiler; no {COMPILER} found")
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_a_training_step_compiles_whole_with_the_same_result(layout: str, device: torch.device) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.model.compiled_step", layout, str(device)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout == f"{layout} training step compiled: same loss and gradients\n", run.stderr
