"""What an estimate rests on. How long anything takes is not tested: it depends on who else is working."""

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


def estimated(lengths: np.ndarray[Any, Any] = LENGTHS, **settings: Any) -> Estimate:
    config = RunConfig(model=MODEL, training=TrainingConfig(**{"tokens_per_batch": 100, "max_steps": 10, **settings}))
    return estimate(config, lengths, torch.device("cpu"))


def test_all_steps_take_as_long_as_one_times_their_number() -> None:
    found = estimated(accumulate=3)
    assert found.tokens_per_step == 300
    assert found.tokens_timed == 100
    assert found.seconds == found.seconds_per_step * 10
    assert found.tokens_per_second == pytest.approx(300 / found.seconds_per_step)
    assert not found.memory_measured


def test_memory_has_four_copies_of_the_weights_and_a_fifth_for_their_running_mean() -> None:
    plain, with_mean = estimated(), estimated(ema_decay=0.9)
    assert plain.memory > 16 * PARAMETERS
    assert with_mean.memory - plain.memory == 4 * PARAMETERS


def test_the_batch_in_memory_doubles_where_every_sentence_goes_through_twice_and_both_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("heed.backends.select.missing_for_compiled_code", lambda: "no compiler")
    once, twice = (estimated(r_drop=r_drop).memory - 16 * PARAMETERS for r_drop in (0.0, 5.0))
    assert 2 * once < twice < 3 * once


def test_memory_is_what_autograd_keeps_for_one_sentence_times_their_number() -> None:
    same = np.full((1, 2), 9)  # 10 target tokens a sentence, so 10 of them fill a batch
    small, large = (estimated(same, tokens_per_batch=tokens).memory - 16 * PARAMETERS for tokens in (50, 100))
    assert large == pytest.approx(2 * small, rel=0.02)


@pytest.mark.skipif(missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code()))
def test_compiled_code_never_has_more_logits_than_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heed.backends.cpu.training.LOGITS_AT_A_TIME", 300 * 20)
    same = np.full((1, 2), 9)
    small, large, larger = (estimated(same, tokens_per_batch=tokens).memory for tokens in (10, 50, 100))
    assert larger - large == pytest.approx((large - small - 4 * 300 * 10) / 40 * 50, rel=0.02)


@pytest.mark.parametrize(("task", "lengths"), [("language-model", (0, 9)), ("masked", (0, 9)), ("classify", (9, 1))])
def test_every_task_is_timed_by_its_own_step_and_counted_by_its_text(
    task: Any, lengths: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DataConfig(task=task, labels=("a", "b") if task == "classify" else ())
    settled = task_named(task)
    shape = {"kind": settled.kind, **settled.model_settings(data)}
    model = ModelConfig.model_validate(MODEL.model_dump() | shape)
    config = RunConfig(model=model, data=data, training=TrainingConfig(tokens_per_batch=100, max_steps=10))
    learnt: list[Batch] = []

    def prepare(_: EagerGradients, batch: Batch) -> list[Batch]:
        learnt.append(batch)
        return [batch]

    monkeypatch.setattr(EagerGradients, "prepare", prepare)
    found = estimate(config, np.full((1, 2), lengths), torch.device("cpu"))
    assert found.tokens_timed == found.tokens_per_step == 100
    largest = max(learnt, key=lambda batch: len(batch.tgt_out))
    assert len(largest.tgt_layout.cu_seqlens) - 1 == 10  # texts of ten tokens, the end included
    assert (largest.tgt_out.max() < 5) == (task == "classify")  # two labels after three special tokens


def test_a_batch_that_does_not_fit_is_made_smaller_and_the_rest_is_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, step = estimated(), module._Trial.step

    def too_much(self: module._Trial, tokens: int) -> tuple[float, float]:
        if tokens > 40:
            raise torch.OutOfMemoryError
        return step(self, tokens)

    monkeypatch.setattr(module._Trial, "step", too_much)
    found = estimated()
    assert found.tokens_timed == 25
    assert found.memory == pytest.approx(whole.memory, rel=0.2)
    monkeypatch.setattr(module._Trial, "step", lambda trial, _tokens: too_much(trial, 41))
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
def test_a_probe_that_dies_harms_nobody(code: str, answer: str) -> None:
    assert probe_bfloat16(code) == answer


def test_a_probe_that_hangs_is_given_up() -> None:
    assert probe_bfloat16("import time; time.sleep(60)", seconds=0.2) == "no answer in 0.2 seconds"


def test_the_optional_packages_are_those_of_the_project() -> None:
    found = optional_packages()
    assert {*found, "dev"} == set(importlib.metadata.metadata("heed").get_all("Provides-Extra") or ())
    assert found["onnx"].keys() == {"onnx", "onnxruntime"}
    assert found["interop"]["transformers"] == importlib.metadata.version("transformers")


def test_disturbed_steps_do_not_count_and_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other work makes most steps thirty times as long: the estimate is that of the step it spared."""
    steps = iter([(3e-3, 0.3)] * 4 + [(1e-4, 0.3), (3e-3, 0.01)] + [(3e-3, 0.3)] * 100)
    monkeypatch.setattr(module._Trial, "find_size", lambda *_: (100, (3e-3, 0.3)))
    monkeypatch.setattr(module._Trial, "step", lambda *_: next(steps))
    monkeypatch.setattr(module._Trial, "memory", lambda *_: 1)
    found = estimated()
    assert found.seconds_per_step == pytest.approx(100 * 1e-4 + 0.01)
    assert found.median_seconds_per_step == pytest.approx(100 * 3e-3 + 0.3)


def test_the_share_of_the_processor_is_what_threads_were_given_of_what_they_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TASKS", tmp_path)

    def write(ran: int, waited: int) -> None:
        for thread in ("1", "2"):
            (tmp_path / thread).mkdir(exist_ok=True)
            (tmp_path / thread / "schedstat").write_text(f"{ran} {waited} 5\n")

    write(1000, 500)
    share = module.ProcessorShare()
    write(2000, 3500)
    assert share.so_far() == 0.25
    monkeypatch.setattr(module, "_TASKS", tmp_path / "absent")  # as on other systems
    assert 0 <= module.ProcessorShare().so_far() <= 1.1
