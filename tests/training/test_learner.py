import pytest
import torch

from heed import ModelConfig, RunConfig, TrainingConfig
from heed.kernels import capture
from heed.kernels.capture import missing_for_capture
from heed.training.learner import can_capture, will_compile
from heed.training.setup import _notes

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def config(**settings: object) -> RunConfig:
    return RunConfig(model=ModelConfig(vocab_size=20), training=TrainingConfig.model_validate(settings))


@pytest.fixture
def has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "find_spec", lambda _: object())
    monkeypatch.setattr(capture, "find_compiler", lambda: "/bin/cc")


@pytest.mark.usefixtures("has_all")
def test_steps_are_captured_on_a_gpu_unless_set_otherwise_or_shared_out() -> None:
    assert can_capture(config(), GPU)
    assert not can_capture(config(), CPU)
    assert not can_capture(config(capture=False), GPU)
    assert not can_capture(config(shard=True), GPU)
    assert _notes(config(), GPU) == []


@pytest.mark.usefixtures("has_all")
def test_layers_are_compiled_if_so_set_or_where_it_is_worth_it() -> None:
    assert will_compile(config(max_steps=5000), GPU)
    assert not will_compile(config(max_steps=4999), GPU)
    assert not will_compile(config(max_steps=5000), CPU)
    assert not will_compile(config(max_steps=5000, compile=False), GPU)
    assert will_compile(config(max_steps=1, compile=True), CPU)


@pytest.mark.usefixtures("has_all")
@pytest.mark.parametrize(
    ("name", "lacking", "message"),
    [
        ("find_spec", lambda _: None, "Triton is not installed"),
        ("find_compiler", lambda: None, "Triton needs a C compiler, and there is none"),
    ],
)
def test_what_is_missing_is_said_and_not_used(
    name: str, lacking: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"heed.kernels.capture.{name}", lacking)
    assert missing_for_capture() == message
    assert not can_capture(config(), GPU)
    assert _notes(config(), GPU) == [
        f"steps are not captured, so training is several times slower than it could be: {message}"
    ]
    assert _notes(config(), CPU) == []
    assert _notes(config(capture=False), GPU) == []
