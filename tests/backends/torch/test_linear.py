import pytest
import torch
from torch.nn import functional

from heed.backends.select import _linear, has_onednn
from heed.backends.torch import linear
from heed.backends.torch.decoder import TorchDecoder
from heed.backends.torch.linear import plain_linear, prepacked_linear
from tests.backends.decoder_steps import DESIGNS, decode, design_name
from tests.model.examples import make, padded, sentences

CPU = torch.device("cpu")
NEEDS_ONEDNN = pytest.mark.skipif(not has_onednn(), reason="needs oneDNN on x86")


@pytest.fixture
def prepack_small_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepack matrices of any size."""
    monkeypatch.setattr(linear, "_MIN_PREPACKED", 0)


@NEEDS_ONEDNN
@pytest.mark.usefixtures("prepack_small_matrices")
@pytest.mark.parametrize("shape", [(1, 96), (5, 96), (40, 96), (2, 7, 96)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_prepacked_linear_layer_equals_torchs(shape: tuple[int, ...], has_bias: bool) -> None:
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
        weight.zero_()  # a prepacked weight is a copy
        assert bool(multiply(torch.ones(1, before.shape[1], dtype=before.dtype)).any()) is is_packed


def test_an_unknown_processor_uses_the_plain_linear_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert _linear("float32") is plain_linear
    weight, bias, x = torch.randn(300, 300), torch.randn(300), torch.randn(2, 300)
    assert torch.equal(plain_linear(weight, bias)(x), functional.linear(x, weight, bias))


@NEEDS_ONEDNN
@pytest.mark.usefixtures("prepack_small_matrices")
@pytest.mark.parametrize("config", DESIGNS[::3], ids=design_name)
@torch.no_grad()
def test_decoder_steps_with_prepacked_weights_equal_those_without(config: object) -> None:
    model = make(config.model_copy(update={"max_length": 64}), CPU, torch.float32)  # type: ignore[attr-defined]
    src = padded(sentences([5, 1, 3], CPU))
    prepacked, plain = (
        decode(TorchDecoder(model, make_linear), src, column=False) for make_linear in (prepacked_linear, plain_linear)
    )
    for logits, expected in zip(prepacked, plain, strict=True):
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
