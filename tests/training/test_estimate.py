"""The arithmetic of estimates. Times themselves are not tested: they depend on the load of the machine."""

import importlib.metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heed.backends.cpu.library import missing_for_compiled_code
from heed.backends.machine import optional_packages, probe_bfloat16
from heed.config import DataConfig, ModelConfig, RunConfig, TrainingConfig
from heed.errors import ConfigError, TrainingError
from heed.model.size import parameter_counts
from heed.training import estimate as module
from heed.training.batches import Batch
from heed.training.estimate import Estimate, estimate
from heed.training.gradients import EagerGradients
from heed.training.tasks import task_named

MODEL = ModelConfig.preset("tiny", vocab_size=300, d_model=16, heads=2, d_ff=32, encoder_layers=1, decoder_layers=1)
PARAMETERS = sum(part.total for part in parameter_counts(MODEL))
LENGTHS = np.random.default_rng(1).integers(3, 9, (50, 2))


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TIMED_STEPS", 2)


def estimated(lengths: np.ndarray[Any, Any] = LENGTHS, **settings: Any) -> Estimate:
    config = RunConfig(model=MODEL, training=TrainingConfig(**{"tokens_per_batch": 100, "max_steps": 10, **settings}))
    return estimate(config, lengths, torch.device("cpu"))


def test_the_time_of_a_run_is_that_of_a_step_times_max_steps() -> None:
    result = estimated(accumulate=3)
    assert result.tokens_per_step == 300
    assert result.tokens_timed == 100
    assert result.seconds == result.seconds_per_step * 10
    assert result.tokens_per_second == pytest.approx(300 / result.seconds_per_step)
    assert not result.memory_measured


def test_memory_holds_four_copies_of_the_weights_and_a_fifth_for_the_ema() -> None:
    without_ema, with_ema = estimated(), estimated(ema_decay=0.9)
    assert without_ema.memory > 16 * PARAMETERS
    assert with_ema.memory - without_ema.memory == 4 * PARAMETERS


def test_r_drop_more_than_doubles_the_memory_of_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heed.backends.select.missing_for_compiled_code", lambda: "no compiler")
    once, twice = (estimated(r_drop=r_drop).memory - 16 * PARAMETERS for r_drop in (0.0, 5.0))
    assert 2 * once < twice < 3 * once


def test_activation_memory_grows_in_proportion_to_the_batch() -> None:
    lengths = np.full((1, 2), 9)  # 10 tokens per sentence with EOS, so that batches have no remainder
    sizes = (50, 100, 150)
    small, large, larger = (estimated(lengths, tokens_per_batch=tokens).memory - 16 * PARAMETERS for tokens in sizes)
    assert larger - large == pytest.approx(large - small, rel=0.02)
    assert large == pytest.approx(2 * small, rel=0.04)  # concatenated weights do not grow


@pytest.mark.skipif(missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code()))
def test_chunked_cross_entropy_bounds_the_memory_of_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heed.backends.cpu.training.LOGITS_AT_A_TIME", 300 * 20)
    lengths = np.full((1, 2), 9)
    small, large, larger = (estimated(lengths, tokens_per_batch=tokens).memory for tokens in (10, 50, 100))
    assert larger - large == pytest.approx((large - small - 4 * 300 * 10) / 40 * 50, rel=0.02)


@pytest.mark.parametrize(("task", "lengths"), [("language-model", (0, 9)), ("masked", (0, 9)), ("classify", (9, 1))])
def test_every_task_is_timed_with_its_own_batches(
    task: Any, lengths: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DataConfig(task=task, labels=("a", "b") if task == "classify" else ())
    task_settings = {"kind": task_named(task).kind, **task_named(task).model_settings(data)}
    model = ModelConfig.model_validate(MODEL.model_dump() | task_settings)
    config = RunConfig(model=model, data=data, training=TrainingConfig(tokens_per_batch=100, max_steps=10))
    batches: list[Batch] = []

    def prepare(_: EagerGradients, batch: Batch) -> list[Batch]:
        batches.append(batch)
        return [batch]

    monkeypatch.setattr(EagerGradients, "prepare", prepare)
    result = estimate(config, np.full((1, 2), lengths), torch.device("cpu"))
    assert result.tokens_timed == result.tokens_per_step == 100
    largest = max(batches, key=lambda batch: len(batch.tgt_out))
    assert len(largest.tgt_layout.cu_seqlens) - 1 == 10  # texts of ten tokens, EOS included
    assert (largest.tgt_out.max() < 5) == (task == "classify")  # two labels after three special tokens


def test_a_batch_that_does_not_fit_into_memory_is_halved_and_scaled_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full_batch, step = estimated(), module._Trial.step
    monkeypatch.setattr("gc.collect", lambda: 0)  # slow among the objects of all tests, and needed on a GPU only

    def step_with_little_memory(self: module._Trial, tokens: int) -> tuple[float, float]:
        if tokens > 40:
            raise torch.OutOfMemoryError
        return step(self, tokens)

    monkeypatch.setattr(module._Trial, "step", step_with_little_memory)
    result = estimated()
    assert result.tokens_timed == 25
    assert result.memory == pytest.approx(full_batch.memory, rel=0.2)
    monkeypatch.setattr(module._Trial, "step", lambda trial, _tokens: step_with_little_memory(trial, 41))
    with pytest.raises(TrainingError, match="does not fit into the memory of CPU"):
        estimated()


def test_bfloat16_on_a_cpu_is_refused_as_in_training() -> None:
    with pytest.raises(ConfigError, match=r"training\.precision = 'bfloat16' needs a GPU"):
        estimated(precision="bfloat16")


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("print(256.0)", "works"),
        ("print(255.0)", "gives 255.0 instead of 256.0"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "kills the process (SIGILL)"),
        ("raise RuntimeError('no such type')", "fails: RuntimeError: no such type"),
    ],
)
def test_a_bfloat16_probe_that_crashes_is_reported(code: str, answer: str) -> None:
    assert probe_bfloat16(code) == answer


def test_a_bfloat16_probe_that_hangs_times_out() -> None:
    assert probe_bfloat16("import time; time.sleep(60)", seconds=0.2) == "no answer in 0.2 seconds"


def test_the_optional_packages_are_those_of_the_projects_extras() -> None:
    extras = optional_packages()
    assert {*extras, "dev"} == set(importlib.metadata.metadata("heed").get_all("Provides-Extra") or ())
    assert extras["onnx"].keys() == {"onnx", "onnxruntime"}
    assert extras["interop"]["transformers"] == importlib.metadata.version("transformers")


def test_the_fastest_step_counts_and_the_median_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other load makes most steps thirty times as long; the estimate is that of the undisturbed ones."""
    monkeypatch.setattr(module, "_TIMED_STEPS", 12)
    steps = iter([(3e-3, 0.3)] * 4 + [(1e-4, 0.3), (3e-3, 0.01)] + [(3e-3, 0.3)] * 100)
    monkeypatch.setattr(module._Trial, "find_size", lambda *_: (100, (3e-3, 0.3)))
    monkeypatch.setattr(module._Trial, "step", lambda *_: next(steps))
    monkeypatch.setattr(module._Trial, "memory", lambda *_: 1)
    result = estimated()
    assert result.seconds_per_step == pytest.approx(100 * 1e-4 + 0.01)
    assert result.median_seconds_per_step == pytest.approx(100 * 3e-3 + 0.3)


def test_the_processor_share_is_run_time_over_run_and_wait_time_of_all_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_THREADS", tmp_path)

    def write(ran: int, waited: int) -> None:
        for thread in ("1", "2"):
            (tmp_path / thread).mkdir(exist_ok=True)
            (tmp_path / thread / "schedstat").write_text(f"{ran} {waited} 5\n")

    write(1000, 500)
    share = module.ProcessorShare()
    write(2000, 3500)
    assert share.so_far() == 0.25
    monkeypatch.setattr(module, "_THREADS", tmp_path / "absent")  # as on other systems
    assert 0 <= module.ProcessorShare().so_far() <= 1.1
