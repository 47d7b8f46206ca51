import gc
from functools import partial

import pytest
import torch

from heed.backends.cuda.graph import capture, missing_for_graphs


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_a_captured_graph_keeps_its_tensors_alive() -> None:
    device, total = torch.device("cuda"), torch.zeros(1000, device="cuda")

    def add(other: torch.Tensor) -> None:
        total.add_(other)

    replay = capture(partial(add, torch.ones(1000, device=device)), device)
    gc.collect()
    other_tensors = [torch.full((1000,), 7.0, device=device) for _ in range(50)]
    total.zero_()
    replay()
    assert total.eq(1).all(), other_tensors[0]


def test_missing_requirements_of_cuda_graphs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heed.backends.cuda.graph.find_spec", lambda _name: None)
    assert missing_for_graphs() == "Triton is not installed"
    monkeypatch.setattr("heed.backends.cuda.graph.find_spec", lambda _name: object())
    monkeypatch.setattr("heed.backends.cuda.graph.shutil.which", lambda _name: None)
    assert missing_for_graphs() == "Triton needs a C compiler, and there is none"
