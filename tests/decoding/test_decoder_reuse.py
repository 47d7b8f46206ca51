"""The fast decoder is built once from the model's weights, and built again whenever they have changed."""

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import nn

from heed import Transformer
from heed.backends.base import Stepper
from heed.backends.kv_cache import DecoderState
from heed.backends.select import inference_backend
from heed.backends.torch.decoder import TorchDecoder
from heed.fallbacks import fallbacks
from heed.model.layers import FeedForward
from tests.decoding.small_models import small_model
from tests.reference.backends import start_search

CPU = torch.device("cpu")


def take_an_optimizer_step(model: Transformer) -> None:
    """Take one step of Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.tensor([[5, 6, 2]]), torch.tensor([[1, 7]])).square().sum().backward()
    optimizer.step()


def take_a_fused_optimizer_step(model: Transformer) -> None:
    """Take one step of an optimiser whose changes torch does not count."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
    model(torch.tensor([[5, 6, 2]]), torch.tensor([[1, 7]])).square().sum().backward()
    optimizer.step()


def load_other_weights(model: Transformer) -> None:
    model.load_state_dict({name: weight + 0.1 for name, weight in model.state_dict().items()})


@torch.no_grad()
def write_into_a_weight(model: Transformer) -> None:
    model.decoder.layers[0].attention.value.weight[0] += 1  # type: ignore[union-attr, operator, index]


def replace_a_weight(model: Transformer) -> None:
    model.vocabulary.embedding.weight = nn.Parameter(torch.randn_like(model.vocabulary.embedding.weight))


def replace_a_module(model: Transformer) -> None:
    model.encoder.layers[0].feed_forward = FeedForward(model.config).double().eval()  # type: ignore[union-attr]


def replace_a_module_that_keeps_its_weights(model: Transformer) -> None:
    layer: Any = model.decoder.layers[0]  # type: ignore[union-attr]
    other = copy.copy(layer.feed_forward)
    other.activation = "gelu" if other.activation == "relu" else "relu"
    layer.feed_forward = other


CHANGES = [
    take_an_optimizer_step,
    take_a_fused_optimizer_step,
    load_other_weights,
    write_into_a_weight,
    replace_a_weight,
    replace_a_module,
    replace_a_module_that_keeps_its_weights,
]


def stepper_of(model: Transformer) -> Stepper:
    return inference_backend([model])._stepper(model)


def first_step(model: Transformer) -> torch.Tensor:
    start = start_search([model], [[5, 6, 7], [8]])
    with torch.no_grad():
        return start.step(start.first, start.state)[0]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_decoding_uses_the_current_weights_after_a_change(
    change: Callable[[Transformer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = small_model(2, CPU)
    before = first_step(model)
    change(model)
    fast = first_step(model)
    monkeypatch.setattr("heed.backends.stepping.why_reference_only", lambda _: "a test")
    reference = first_step(model)
    torch.testing.assert_close(fast, reference)
    assert not torch.allclose(before, reference)


def test_the_fast_decoder_is_built_once_for_unchanged_weights() -> None:
    model, _ = small_model(2, CPU)
    first_step(model)
    stepper = stepper_of(model)
    first_step(model)
    assert stepper_of(model) is stepper
    write_into_a_weight(model)
    assert stepper_of(model) is not stepper


def test_the_fast_decoder_keeps_no_model_alive() -> None:
    model, _ = small_model(2, CPU)
    first_step(model)
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None


def test_a_search_never_copies_the_kv_cache() -> None:
    model, _ = small_model(2, CPU)
    start = start_search([model], [[5, 6, 7], [8]])
    state = start.state.select(torch.tensor([[0, 0], [1, 1]]))
    with torch.no_grad():
        _, state = start.step(torch.tensor([4, 5, 6, 7]), state)
    other = state.select(torch.tensor([[1, 0], [3, 3]]))
    before, after = cast("DecoderState", state.states[0]), cast("DecoderState", other.states[0])
    assert after.kv_cache is before.kv_cache


@pytest.mark.parametrize("failing", [1, 2], ids=["compiled code", "all copies of the weights"])
def test_without_memory_for_the_fast_decoder_a_slower_one_is_used_and_reported(
    failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, sources = small_model(0, CPU)
    model = model.float()
    expected_start = start_search([model], sources)
    expected, _ = expected_start.step(expected_start.first, expected_start.state)
    calls: list[object] = []

    def refusing(decoder: type) -> Callable[..., object]:
        def refuse(*args: Any, **kwargs: Any) -> object:
            calls.append(args)
            if len(calls) <= failing:
                raise RuntimeError(f"can't allocate memory, {failing}")
            return decoder(*args, **kwargs)

        return refuse

    monkeypatch.setattr("heed.backends.select.missing_for_compiled_code", lambda: None)
    monkeypatch.setattr("heed.backends.select.NativeDecoder", refusing(TorchDecoder))
    monkeypatch.setattr("heed.backends.select.TorchDecoder", refusing(TorchDecoder))
    other = copy.deepcopy(model)
    for _ in range(2):  # a failed allocation is not tried again
        start = start_search([other], sources)
        log_probs, _ = start.step(start.first, start.state)
        torch.testing.assert_close(log_probs, expected)
    assert len(calls) == 2
    assert f"decoding falls back to a slower decoder: can't allocate memory, {failing}" in fallbacks()
