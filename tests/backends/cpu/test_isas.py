"""Every instruction set that this processor has computes what the reference does."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from heed import ModelConfig
from heed.artifacts.quantization import quantize_rows
from heed.backends.cpu.decoder import NativeDecoder
from heed.backends.cpu.dropout import DropoutStruct, apply_dropout
from heed.backends.cpu.library import engine
from heed.backends.cpu.linear import matmul
from heed.backends.cpu.loss import make_linear_cross_entropy
from heed.backends.cpu.search_ops import topk
from heed.backends.torch.decoder import TorchDecoder
from heed.backends.torch.linear import compiled_linear
from heed.training.loss import loss_of_logits
from tests.backends.decoder_steps import DESIGNS, decode, design_name
from tests.model.examples import SHAPE, make, padded, sentences
from tests.reference.dropout import dropped
from tests.reference.linear import reference_int8_linear

CPU = torch.device("cpu")
ODD_SIZES = {"d_model": 84, "heads": 3, "d_ff": 131, "vocab_size": 203}  # no multiples of the kernels' block sizes
ROWS = (1, 2, 3, 4, 7, 8, 9, 17)  # around the sizes of register tiles

pytestmark = pytest.mark.usefixtures("isa")


def test_the_requested_instruction_set_runs(isa: str) -> None:
    assert engine().isa == isa
    assert engine().self_test() == 0


@pytest.mark.parametrize("size", [(1, 1), (33, 65), (100, 130), (700, 1000)], ids=str)
def test_linear_layers_equal_torchs_and_the_int8_reference(size: tuple[int, int]) -> None:
    weight, bias = torch.randn(size), torch.randn(size[0])
    layer, int8_layer = (compiled_linear(weight, bias, int8=int8) for int8 in (False, True))
    for rows in ROWS:
        x = torch.randint(-127, 128, (rows, size[1])) / 64  # no ties in rounding
        x[:, 0] = 127 / 64
        expected = functional.linear(x.double(), weight.double(), bias.double())
        torch.testing.assert_close(layer(x).double(), expected, atol=2e-4, rtol=1e-5)
        torch.testing.assert_close(int8_layer(x), reference_int8_linear(weight, bias)(x), atol=1e-3, rtol=1e-5)


def extremes(*shape: int) -> list[Tensor]:
    """Matrices whose values are all as large as int8 holds, in every arrangement of signs that could overflow a sum."""
    ones, alternating = torch.ones(shape), torch.ones(shape)
    alternating[..., 1::2] = -1
    return [ones, -ones, alternating, -alternating, (torch.rand(shape) < 0.5).float() * 2 - 1]


def test_int8_sums_of_extreme_values_never_saturate() -> None:
    """16-bit sums of products of 127 · 127 would: each result is compared with exact integers."""
    outputs, inputs = 40, 1030
    for weight in extremes(outputs, inputs):
        quantized, scales = (torch.from_numpy(array) for array in quantize_rows(weight.numpy()))
        assert quantized.abs().min() == 127
        for x in extremes(5, inputs):
            exact = (x.double() * 127) @ quantized.double().T
            expected = (exact * scales.double() / 127).float()
            torch.testing.assert_close(compiled_linear(weight, None, int8=True)(x), expected, atol=1e-3, rtol=1e-6)


@pytest.mark.parametrize("config", DESIGNS, ids=design_name)
@torch.no_grad()
def test_decoder_steps_equal_the_models_for_every_design(config: ModelConfig) -> None:
    model = make(config.model_copy(update={"max_length": 64}), CPU, torch.float32)
    src = padded(sentences([5, 1, 3], CPU))
    steps = zip(decode(NativeDecoder(model), src, column=False), decode(model, src, column=True), strict=True)
    for logits, expected in steps:
        torch.testing.assert_close(logits, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("threads", [1, 3])
@torch.no_grad()
def test_decoder_steps_of_odd_sizes_equal_the_models(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heed.backends.cpu.decoder.threads_for", lambda _work: threads)
    model = make(ModelConfig.model_validate({**SHAPE, **ODD_SIZES}), CPU, torch.float32)
    src = padded(sentences([5, 1, 3], CPU))
    references = (model, True), (TorchDecoder(model, reference_int8_linear), False)
    for int8, (reference, column) in zip((False, True), references, strict=True):
        steps = decode(NativeDecoder(model, int8=int8), src, column=False), decode(reference, src, column=column)
        for logits, expected in zip(*steps, strict=True):
            if int8:  # a number half-way between two integers may be rounded either way
                assert (logits - expected).abs().mean() < 0.01 * expected.std()
            else:
                torch.testing.assert_close(logits, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("r_drop", [0.0, 3.0])
def test_losses_and_their_gradients_equal_the_references(r_drop: float) -> None:
    hidden, weight = torch.randn(10, 24, requires_grad=True), torch.randn(150, 24, requires_grad=True)
    tgt_out = torch.tensor([3, 0, 149, 70, 63]).repeat(2)
    loss = make_linear_cross_entropy(matmul)(hidden, weight, None, tgt_out, 0, 0.1, r_drop)
    expected = loss_of_logits(functional.linear(hidden, weight), tgt_out, 0, 0.1, r_drop)
    torch.testing.assert_close(loss, expected)
    gradients = (torch.autograd.grad(value, [hidden, weight]) for value in (loss, expected))
    for gradient, expected_gradient in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-5, rtol=1e-4)


def test_dropout_and_topk_equal_their_references() -> None:
    x = torch.randn(7, 133)
    mask = dropped(99, 1, 7, 133, 0.3, CPU)[0]
    torch.testing.assert_close(apply_dropout(x, DropoutStruct.of(0.3, 99)), x.masked_fill(mask, 0.0) / 0.7)
    values, ids = topk(x, 5)
    expected = x.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(values, expected.values[:, :5])
    assert torch.equal(ids, expected.indices[:, :5])
