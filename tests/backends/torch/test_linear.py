import pytest
import torch
from torch.nn import functional

from heed.backends.torch import linear as products
from heed.backends.torch.decoder import LeanDecoder
from heed.backends.torch.linear import can_be_laid_out, laid_out, plain, product
from tests.backends.torch.test_decoder import DESIGNS, walk
from tests.model.examples import make, padded, sentences

CPU = torch.device("cpu")
LAID_OUT = pytest.mark.skipif(not can_be_laid_out(), reason="needs oneDNN on x86")


@LAID_OUT
@pytest.mark.parametrize("shape", [(1, 96), (5, 96), (40, 96), (2, 7, 96)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_matrix_laid_out_gives_the_product_of_the_matrix(shape: tuple[int, ...], has_bias: bool) -> None:
    weight, bias, x = torch.randn(64, 96), torch.randn(64) if has_bias else None, torch.randn(shape)
    torch.testing.assert_close(laid_out(weight, bias)(x), functional.linear(x, weight, bias), rtol=1e-5, atol=1e-5)


@LAID_OUT
def test_only_large_matrices_of_float32_are_laid_out() -> None:
    asked: list[str] = []
    for weight in (torch.randn(512, 256), torch.randn(512, 255), torch.randn(512, 256, dtype=torch.float64)):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(products, "laid_out", lambda *_: asked.append("laid out"))
            patched.setattr(products, "plain", lambda *_: asked.append("plain"))
            product(weight, None)
    assert asked == ["laid out", "plain", "plain"]


def test_a_processor_that_was_not_tried_multiplies_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    weight, bias, x = torch.randn(300, 300), torch.randn(300), torch.randn(2, 300)
    assert torch.equal(product(weight, bias)(x), functional.linear(x, weight, bias))


@LAID_OUT
@pytest.mark.parametrize("config", DESIGNS[::3], ids=lambda one: f"{one.norm}-{one.positions}-{one.activation}")
@torch.no_grad()
def test_a_search_with_matrices_laid_out_goes_as_without(config: object) -> None:
    model = make(config.model_copy(update={"max_length": 64}), CPU, torch.float32)  # type: ignore[attr-defined]
    src = padded(sentences([5, 1, 3], CPU))
    quick, own = (walk(LeanDecoder(model, multiply), src, column=False) for multiply in (laid_out, plain))
    for one, other in zip(quick, own, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
