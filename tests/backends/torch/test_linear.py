import pytest
import torch
from torch.nn import functional

from heed.backends.select import _linear, has_onednn
from heed.backends.torch import linear
from heed.backends.torch.decoder import TorchDecoder
from heed.backends.torch.linear import plain_linear, prepacked_linear
from tests.backends.torch.test_decoder import DESIGNS, walk
from tests.model.examples import make, padded, sentences

CPU = torch.device("cpu")
NEEDS_ONEDNN = pytest.mark.skipif(not has_onednn(), reason="needs oneDNN on x86")


@pytest.fixture
def even_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small matrices are prepacked too."""
    monkeypatch.setattr(linear, "_MIN_PREPACKED", 0)


@NEEDS_ONEDNN
@pytest.mark.usefixtures("even_small_ones")
@pytest.mark.parametrize("shape", [(1, 96), (5, 96), (40, 96), (2, 7, 96)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_prepacked_linear_layer_is_the_linear_layer(shape: tuple[int, ...], has_bias: bool) -> None:
    weight, bias, x = torch.randn(64, 96), torch.randn(64) if has_bias else None, torch.randn(shape)
    packed = prepacked_linear(weight, bias)
    torch.testing.assert_close(packed(x), functional.linear(x, weight, bias), rtol=1e-5, atol=1e-5)


@NEEDS_ONEDNN
def test_only_large_matrices_of_float32_are_prepacked() -> None:
    for weight, is_packed in (
        (torch.randn(512, 256), True),
        (torch.randn(512, 255), False),
        (torch.randn(512, 256, dtype=torch.float64), False),
    ):
        before = weight.clone()
        multiply = prepacked_linear(weight, None)
        weight.zero_()  # what was packed is a copy
        assert bool(multiply(torch.ones(1, before.shape[1], dtype=before.dtype)).any()) is is_packed


def test_a_processor_that_was_not_tried_multiplies_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert _linear("float32") is plain_linear
    weight, bias, x = torch.randn(300, 300), torch.randn(300), torch.randn(2, 300)
    assert torch.equal(plain_linear(weight, bias)(x), functional.linear(x, weight, bias))


@NEEDS_ONEDNN
@pytest.mark.usefixtures("even_small_ones")
@pytest.mark.parametrize("config", DESIGNS[::3], ids=lambda one: f"{one.norm}-{one.positions}-{one.activation}")
@torch.no_grad()
def test_a_search_with_prepacked_matrices_goes_as_without(config: object) -> None:
    model = make(config.model_copy(update={"max_length": 64}), CPU, torch.float32)  # type: ignore[attr-defined]
    src = padded(sentences([5, 1, 3], CPU))
    quick, own = (
        walk(TorchDecoder(model, make_linear), src, column=False) for make_linear in (prepacked_linear, plain_linear)
    )
    for one, other in zip(quick, own, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
