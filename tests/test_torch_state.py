"""heed's results do not depend on torch's global settings and context managers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from heed.fallbacks import fallbacks
from heed.model.torch_state import float32_by_default, generate_with_torch_defaults, torch_defaults
from tests.decoding.small_models import small_model
from tests.reference.backends import start_search
from tests.torch_states import GROUPS

ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")


@pytest.mark.parametrize("group", GROUPS)
def test_results_are_bit_identical_in_every_state_of_torch(group: str) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "tests.torch_states", group],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    assert [json.loads(line) for line in process.stdout.splitlines()] == [[state, []] for state in GROUPS[group]]


def test_torch_defaults_hold_inside_and_the_callers_state_is_restored_at_every_yield() -> None:
    def state() -> tuple[object, ...]:
        autocast = [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")]
        return *autocast, torch.is_inference_mode_enabled(), torch.empty(0).device.type, torch.is_grad_enabled()

    @generate_with_torch_defaults
    def yield_state_twice():  # type: ignore[no-untyped-def]
        yield state()
        yield state()

    default_state = state()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
        outside = state()
        assert outside != default_state
        for inside in yield_state_twice():
            assert inside == default_state
            assert state() == outside
        with torch_defaults():
            assert state() == default_state
        assert state() == outside
    assert state() == default_state


def test_float32_by_default_restores_the_default_dtype_even_after_an_error() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with float32_by_default():
            assert torch.zeros(1).dtype is torch.float32
        assert torch.zeros(1).dtype is torch.float64
        with pytest.raises(ZeroDivisionError), float32_by_default():
            _ = 1 // 0
        assert torch.zeros(1).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_model_built_in_inference_mode_uses_the_reference_decoder_and_reports_it() -> None:
    model, sources = small_model(0, CPU)
    with torch.inference_mode():
        inference_model, _ = small_model(0, CPU)
    expected_start, start = start_search([model], sources), start_search([inference_model], sources)
    (log_probs, _), (expected, _) = (search.step(search.first, search.state) for search in (start, expected_start))
    torch.testing.assert_close(log_probs, expected)
    assert any("torch.inference_mode()" in note for note in fallbacks())
    with torch.inference_mode():
        inference_model.vocabulary.embedding.weight.mul_(2)  # torch keeps no version counter for inference tensors
    start = start_search([inference_model], sources)
    changed, _ = start.step(start.first, start.state)
    assert not torch.allclose(changed, expected)


def test_changing_the_number_of_threads_between_steps_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heed.backends.cpu.library._BYTES_PER_THREAD", 1)  # even a small model uses all threads
    model, sources = small_model(0, CPU)
    before = torch.get_num_threads()

    def step_with_threads(threads: list[int]) -> list[list[list[float]]]:
        start, step_log_probs = start_search([model.float()], sources), []
        state = start.state
        for count in threads:
            torch.set_num_threads(count)
            log_probs, state = start.step(start.first, state)
            step_log_probs.append(log_probs.tolist())
        return step_log_probs

    try:
        assert step_with_threads([1, 3, 2, 1, 4]) == step_with_threads([1, 1, 1, 1, 1])
    finally:
        torch.set_num_threads(before)
