"""heed's numbers are the same whatever torch was told for the rest of the program."""

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
def test_loading_translating_scoring_looking_and_training_are_bit_equal_in_every_state_of_torch(group: str) -> None:
    child = subprocess.run(
        [sys.executable, "-m", "tests.torch_states", group],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    assert [json.loads(line) for line in child.stdout.splitlines()] == [[state, []] for state in GROUPS[group]]


def test_torch_is_as_it_was_before_after_and_between_what_is_yielded() -> None:
    def state() -> tuple[object, ...]:
        kinds = [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")]
        return *kinds, torch.is_inference_mode_enabled(), torch.empty(0).device.type, torch.is_grad_enabled()

    @generate_with_torch_defaults
    def twice():  # type: ignore[no-untyped-def]
        yield state()
        yield state()

    plain = state()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
        outside = state()
        assert outside != plain
        for inside in twice():
            assert inside == plain
            assert state() == outside
        with torch_defaults():
            assert state() == plain
        assert state() == outside
    assert state() == plain


def test_float32_by_default_lasts_no_longer_than_it_should() -> None:
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


def test_a_model_made_in_inference_mode_steps_itself_and_says_so() -> None:
    model, sources = small_model(0, CPU)
    with torch.inference_mode():
        same, _ = small_model(0, CPU)
    expected, start = start_search([model], sources), start_search([same], sources)
    (found, _), (wanted, _) = (one.step(one.first, one.state) for one in (start, expected))
    torch.testing.assert_close(found, wanted)
    assert any("torch.inference_mode()" in note for note in fallbacks())
    with torch.inference_mode():
        same.vocabulary.embedding.weight.mul_(2)  # torch keeps no count of such changes
    start = start_search([same], sources)
    changed, _ = start.step(start.first, start.state)
    assert not torch.allclose(changed, wanted)


def test_the_number_of_threads_may_change_between_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heed.backends.cpu.library._BYTES_PER_THREAD", 1)  # so that even this is shared out
    model, sources = small_model(0, CPU)
    before = torch.get_num_threads()

    def walk(threads: list[int]) -> list[list[list[float]]]:
        start, found = start_search([model.float()], sources), []
        state = start.state
        for count in threads:
            torch.set_num_threads(count)
            log_probs, state = start.step(start.first, state)
            found.append(log_probs.tolist())
        return found

    try:
        assert walk([1, 3, 2, 1, 4]) == walk([1, 1, 1, 1, 1])
    finally:
        torch.set_num_threads(before)
