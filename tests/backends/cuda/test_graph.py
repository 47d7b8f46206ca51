import gc
from functools import partial

import pytest
import torch

from heed.backends.cuda.graph import capture, missing_for_graphs


@pytest.mark.skipif(not torch.cuda.is_available(), reason="only a GPU can capture")
def test_what_is_captured_keeps_the_numbers_that_nobody_else_holds() -> None:
    device, total = torch.device("cuda"), torch.zeros(1000, device="cuda")

    def add(other: torch.Tensor) -> None:
        total.add_(other)

    repeated = capture(partial(add, torch.ones(1000, device=device)), device)
    gc.collect()
    others = [torch.full((1000,), 7.0, device=device) for _ in range(50)]
    total.zero_()
    repeated()
    assert total.eq(1).all(), others[0]


def test_what_a_machine_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heed.backends.cuda.graph.find_spec", lambda _name: None)
    assert missing_for_graphs() == "Triton is not installed"
    monkeypatch.setattr("heed.backends.cuda.graph.find_spec", lambda _name: object())
    monkeypatch.setattr("heed.backends.cpu.build.shutil.which", lambda _name: None)
    assert missing_for_graphs() == "Triton needs a C compiler, and there is none"
