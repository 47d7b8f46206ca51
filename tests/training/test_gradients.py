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
from heed.backends.torch.training import RawDropout
from heed.model.attention import plain_attention
from heed.training.gradients import EagerGradients
from heed.training.run import _notes
from heed.training.tasks import task_of
from tests.model.examples import COMBINATIONS
from tests.training.test_bucketing import WORDS, random_batch

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def config(**settings: object) -> RunConfig:
    return RunConfig(model=ModelConfig(vocab_size=20), training=TrainingConfig.model_validate(settings))


def noted(settings: RunConfig, device: torch.device) -> list[str]:
    return _notes(settings, training_plan(settings, device))


@pytest.fixture
def has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "find_spec", lambda _: object())
    monkeypatch.setattr(capture, "find_compiler", lambda: "/bin/cc")


@pytest.mark.usefixtures("has_all")
def test_steps_are_captured_on_a_gpu_unless_set_otherwise_or_shared_out() -> None:
    assert training_plan(config(), GPU).is_captured
    assert not training_plan(config(), CPU).is_captured
    assert not training_plan(config(capture=False), GPU).is_captured
    assert not training_plan(config(shard=True), GPU).is_captured
    assert noted(config(), GPU) == []


@pytest.mark.usefixtures("has_all")
def test_layers_are_compiled_if_so_set_or_where_it_is_worth_it() -> None:
    assert training_plan(config(max_steps=5000), GPU).is_compiled
    assert not training_plan(config(max_steps=4999), GPU).is_compiled
    assert not training_plan(config(max_steps=5000), CPU).is_compiled
    assert not training_plan(config(max_steps=5000, compile=False), GPU).is_compiled
    assert training_plan(config(max_steps=1, compile=True), CPU).is_compiled


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
    monkeypatch.setattr(f"heed.backends.cuda.graph.{name}", lacking)
    assert missing_for_graphs() == message
    assert not training_plan(config(), GPU).is_captured
    assert noted(config(), GPU) == [
        f"training is several times slower than it could be; steps are not captured: {message}"
    ]
    assert noted(config(), CPU) == []
    assert noted(config(capture=False), GPU) == []


def learnt(model: Transformer, settings: RunConfig, seed: int = 3) -> tuple[Tensor, list[Tensor]]:
    """The loss of a batch, and its gradients."""
    by = EagerGradients(model, settings, training_plan(settings, CPU))
    loss = by.backward(by.prepare(random_batch(np.random.default_rng(1), 30)), 0.01, seed)
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    by.zero_grad()
    return loss, gradients


def designs() -> list[ModelConfig]:
    """Of all designs of an encoder-decoder, without dropout."""
    without = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
    whole = [config for config in COMBINATIONS if config.kind == "encoder-decoder"]
    return [config.model_copy(update={**without, "vocab_size": WORDS, "source_vocab_size": None}) for config in whole]


@pytest.mark.skipif(missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code()))
@pytest.mark.parametrize("design", designs(), ids=lambda one: f"{one.norm}-{one.positions}-{one.activation}")
@pytest.mark.parametrize("r_drop", [0.0, 5.0])
def test_compiled_code_learns_what_the_plain_model_learns(
    design: ModelConfig, r_drop: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_linear, "_SMALL", 0)
    monkeypatch.setattr(select, "_is_amd", lambda: True)
    torch.manual_seed(1)
    model, settings = Transformer(design), RunConfig(model=design, training=TrainingConfig(r_drop=r_drop))
    loss, gradients = learnt(model, settings)

    plain = task_of(settings).loss(model, random_batch(np.random.default_rng(1), 30), settings, plain_attention)
    wanted = torch.autograd.grad(plain * 0.01, list(model.parameters()), allow_unused=True)
    torch.testing.assert_close(loss, plain.detach(), atol=1e-3, rtol=1e-5)
    for own, other in zip(gradients, [one for one in wanted if one is not None], strict=True):
        torch.testing.assert_close(own, other, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("missing", [None, "there is no C compiler"])
def test_what_learns_quickly_is_a_twin_and_dropout_follows_from_the_seed(
    missing: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing is not None:
        monkeypatch.setattr(select, "missing_for_compiled_code", lambda: missing)
    design = ModelConfig(vocab_size=WORDS, d_model=16, heads=2, encoder_layers=1, decoder_layers=1, d_ff=16)
    model, settings = Transformer(design), RunConfig(model=design)
    kinds = [type(part) for part in model.modules()]
    losses = [learnt(model, settings, seed)[0] for seed in (1, 1, 2)]
    assert losses[0] == losses[1] != losses[2]
    assert [type(part) for part in model.modules()] == kinds
    assert nn.Dropout in kinds


@pytest.mark.parametrize("can_compile", [False, True])
def test_weights_that_are_shared_out_get_quick_dropout_where_they_are(
    can_compile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select, "missing_for_compiled_code", lambda: None if can_compile else "no compiler")
    design = ModelConfig(vocab_size=WORDS, d_model=16, heads=2, encoder_layers=1, decoder_layers=1, d_ff=16)
    model = Transformer(design)
    sharded = RunConfig(model=design, training=TrainingConfig(shard=True))
    EagerGradients(model, sharded, training_plan(sharded, CPU))
    quick = NativeDropout if can_compile else RawDropout
    assert any(isinstance(part, quick) for part in model.modules())
    assert not any(isinstance(part, nn.Dropout) for part in model.modules())
