import numpy as np
import pytest
import torch
from torch import Tensor, nn

from heed import ModelConfig, RunConfig, TrainingConfig, Transformer
from heed.backends import select
from heed.backends.cpu import linear as compiled_linear
from heed.backends.cpu.dropout import NativeDropout
from heed.backends.cpu.library import missing_for_compiled_code
from heed.backends.cuda import graph as capture
from heed.backends.cuda.graph import missing_for_graphs
from heed.backends.select import training_plan
from heed.backends.torch.training import BitwiseDropout
from heed.model.attention import plain_attention
from heed.training.gradients import EagerGradients
from heed.training.run import _capture_warning
from heed.training.tasks import task_of
from tests.model.examples import COMBINATIONS
from tests.training.examples import VOCABULARY, random_batch

CPU, GPU = torch.device("cpu"), torch.device("cuda")
SMALL = ModelConfig(vocab_size=VOCABULARY, d_model=16, heads=2, encoder_layers=1, decoder_layers=1, d_ff=16)


def config(**settings: object) -> RunConfig:
    return RunConfig(model=ModelConfig(vocab_size=20), training=TrainingConfig.model_validate(settings))


def capture_warning(settings: RunConfig, device: torch.device) -> str | None:
    return _capture_warning(settings, training_plan(settings, device))


@pytest.fixture
def has_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "find_spec", lambda _: object())
    monkeypatch.setattr(capture, "find_compiler", lambda: "/bin/cc")


@pytest.mark.usefixtures("has_triton")
def test_steps_are_captured_on_a_gpu_unless_disabled_or_sharded() -> None:
    assert training_plan(config(), GPU).is_captured
    assert not training_plan(config(), CPU).is_captured
    assert not training_plan(config(capture=False), GPU).is_captured
    assert not training_plan(config(shard=True), GPU).is_captured
    assert capture_warning(config(), GPU) is None


@pytest.mark.usefixtures("has_triton")
def test_layers_are_compiled_if_set_or_for_long_runs_on_a_gpu() -> None:
    assert training_plan(config(max_steps=5000), GPU).is_compiled
    assert not training_plan(config(max_steps=4999), GPU).is_compiled
    assert not training_plan(config(max_steps=5000), CPU).is_compiled
    assert not training_plan(config(max_steps=5000, compile=False), GPU).is_compiled
    assert training_plan(config(max_steps=1, compile=True), CPU).is_compiled


@pytest.mark.usefixtures("has_triton")
@pytest.mark.parametrize(
    ("name", "missing", "message"),
    [
        ("find_spec", lambda _: None, "Triton is not installed"),
        ("find_compiler", lambda: None, "Triton needs a C compiler, and there is none"),
    ],
)
def test_without_triton_or_a_compiler_steps_are_eager_and_a_warning_says_why(
    name: str, missing: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"heed.backends.cuda.graph.{name}", missing)
    assert missing_for_graphs() == message
    assert not training_plan(config(), GPU).is_captured
    warning = f"training is several times slower than it could be; steps are not captured: {message}"
    assert capture_warning(config(), GPU) == warning
    assert capture_warning(config(), CPU) is None
    assert capture_warning(config(capture=False), GPU) is None


def loss_and_gradients(model: Transformer, settings: RunConfig, seed: int = 3) -> tuple[Tensor, list[Tensor]]:
    """The loss of a batch and its gradients, by the CPU backend."""
    eager = EagerGradients(model, settings, training_plan(settings, CPU))
    loss = eager.backward(eager.prepare(random_batch(np.random.default_rng(1), 30)), 0.01, seed)
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    eager.zero_grad()
    return loss, gradients


def architectures() -> list[ModelConfig]:
    """All encoder-decoder combinations of the model tests, without dropout."""
    no_dropout = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    changes = {**no_dropout, "vocab_size": VOCABULARY, "source_vocab_size": None}
    return [config.model_copy(update=changes) for config in COMBINATIONS if config.kind == "encoder-decoder"]


@pytest.mark.skipif(missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code()))
@pytest.mark.parametrize(
    "architecture", architectures(), ids=lambda model: f"{model.norm}-{model.positions}-{model.activation}"
)
@pytest.mark.parametrize("r_drop", [0.0, 5.0])
def test_compiled_kernels_have_the_loss_and_gradients_of_the_reference(
    architecture: ModelConfig, r_drop: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_linear, "_MIN_MULTIPLICATIONS", 0)
    monkeypatch.setattr(select, "_is_amd", lambda: True)
    torch.manual_seed(1)
    model = Transformer(architecture)
    settings = RunConfig(model=architecture, training=TrainingConfig(r_drop=r_drop))
    loss, gradients = loss_and_gradients(model, settings)

    reference = task_of(settings).loss(model, random_batch(np.random.default_rng(1), 30), settings, plain_attention)
    expected = torch.autograd.grad(reference * 0.01, list(model.parameters()), allow_unused=True)
    torch.testing.assert_close(loss, reference.detach(), atol=1e-3, rtol=1e-5)
    used = [gradient for gradient in expected if gradient is not None]
    torch.testing.assert_close(gradients, used, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("missing", [None, "there is no C compiler"])
def test_training_leaves_the_models_modules_alone_and_dropout_follows_the_seed(
    missing: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing is not None:
        monkeypatch.setattr(select, "missing_for_compiled_code", lambda: missing)
    model = Transformer(SMALL)
    modules = [type(module) for module in model.modules()]
    losses = [loss_and_gradients(model, RunConfig(model=SMALL), seed)[0] for seed in (1, 1, 2)]
    assert losses[0] == losses[1] != losses[2]
    assert [type(module) for module in model.modules()] == modules
    assert nn.Dropout in modules


@pytest.mark.parametrize(
    "can_compile",
    [
        False,
        pytest.param(
            True,
            marks=pytest.mark.skipif(missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code())),
        ),
    ],
)
def test_a_sharded_model_gets_fast_dropout_modules_in_place(can_compile: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "missing_for_compiled_code", lambda: None if can_compile else "no compiler")
    model = Transformer(SMALL)
    sharded = RunConfig(model=SMALL, training=TrainingConfig(shard=True))
    EagerGradients(model, sharded, training_plan(sharded, CPU))
    fast_dropout = NativeDropout if can_compile else BitwiseDropout
    assert any(isinstance(module, fast_dropout) for module in model.modules())
    assert not any(isinstance(module, nn.Dropout) for module in model.modules())
