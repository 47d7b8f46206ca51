"""A decoder step in compiled code equals the model's step, for any design, shape and number of threads."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from heed import ModelConfig, Transformer
from heed.backends.cpu.decoder import NativeDecoder
from heed.backends.cpu.library import missing_for_compiled_code
from heed.backends.select import _make_stepper
from heed.backends.torch.decoder import TorchDecoder
from heed.backends.torch.linear import plain_linear
from tests.backends.decoder_steps import DESIGNS, SEPARATE_VOCABULARIES, decode, design_name
from tests.model.examples import FIRST_WORD, SHAPE, make, padded, sentences
from tests.reference.linear import reference_int8_linear

CPU = torch.device("cpu")
ODD_SIZES = {"d_model": 84, "heads": 3, "d_ff": 131, "vocab_size": 203}  # no multiples of the kernels' block sizes

pytestmark = pytest.mark.skipif(missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code()))


@pytest.fixture(params=[1, 2, 3], ids=lambda threads: f"{threads}-threads")
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("heed.backends.cpu.library._BYTES_PER_THREAD", 1)
        yield request.param
    torch.set_num_threads(before)


def native(model: Transformer) -> NativeDecoder:
    return NativeDecoder(model)


@pytest.mark.parametrize("config", [*DESIGNS, SEPARATE_VOCABULARIES], ids=design_name)
@torch.no_grad()
def test_native_decoder_steps_equal_the_models(config: ModelConfig) -> None:
    model = make(config.model_copy(update={"max_length": 64}), CPU, torch.float32)
    src = padded(sentences([5, 1, 3], CPU))
    decoder = native(model)
    for logits, expected in zip(decode(decoder, src, column=False), decode(model, src, column=True), strict=True):
        torch.testing.assert_close(logits, expected, atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_native_decoder_steps_with_odd_sizes_and_several_threads_equal_the_models(threads: int) -> None:
    model = make(ModelConfig.model_validate({**SHAPE, **ODD_SIZES}), CPU, torch.float32)
    src = padded(sentences([5, 1, 3], CPU))
    decoder = native(model)
    for logits, expected in zip(decode(decoder, src, column=False), decode(model, src, column=True), strict=True):
        torch.testing.assert_close(logits, expected, atol=2e-5, rtol=1e-4)
    assert threads == torch.get_num_threads()


@pytest.mark.parametrize(
    "sizes", [{}, ODD_SIZES, {"d_model": 192, "heads": 3, "d_ff": 256}], ids=["small", "odd", "wide"]
)
@torch.no_grad()
def test_native_int8_steps_equal_the_reference_int8_steps(sizes: dict[str, int]) -> None:
    model = make(ModelConfig.model_validate({**SHAPE, **sizes}), CPU, torch.float32)
    src = padded(sentences([5, 1, 3], CPU))
    decoder = NativeDecoder(model, int8=True)
    for logits, expected in zip(
        decode(decoder, src, column=False),
        decode(TorchDecoder(model, reference_int8_linear), src, column=False),
        strict=True,
    ):
        # A number half-way between two integers may be rounded either way.
        assert (logits - expected).abs().mean() < 0.01 * expected.std()
        assert (logits - expected).abs().max() < 0.3 * expected.std()


@torch.no_grad()
def test_several_threads_can_use_one_decoder_at_once() -> None:
    model = make(ModelConfig.model_validate({**SHAPE, **ODD_SIZES}), CPU, torch.float32)
    decoder, src = native(model), padded(sentences([5, 1, 3], CPU))
    expected = decode(decoder, src, column=False)
    with ThreadPoolExecutor(4) as pool:
        for logits in pool.map(lambda _: decode(decoder, src, column=False), range(8)):
            torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_native_decoder_steps_with_many_rows_equal_torchs() -> None:
    model = make(ModelConfig.model_validate({**SHAPE, **ODD_SIZES}), CPU, torch.float32)
    native_decoder, torch_decoder = native(model), TorchDecoder(model, plain_linear)
    src = padded(sentences([4, 2, 7] * 9, CPU))
    state, torch_state, ids = native_decoder.start(src), torch_decoder.start(src), torch.arange(27) + FIRST_WORD
    for width in (1, 3):
        rows = torch.arange(27)[:, None].expand(-1, width)
        state, torch_state = state.select(rows), torch_state.select(rows)
        (logits, state), (expected, torch_state) = (
            decoder.step(ids.repeat_interleave(width), decoder_state)
            for decoder, decoder_state in ((native_decoder, state), (torch_decoder, torch_state))
        )
        torch.testing.assert_close(logits, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize(
    "parameter", ["feed_forward.widen.bias", "attention.query.bias", "cross_attention.value.weight"]
)
@torch.no_grad()
def test_nan_weights_give_nan_logits(parameter: str, int8: bool) -> None:
    model = make(DESIGNS[0], CPU, torch.float32)
    model.get_parameter(f"decoder.layers.0.{parameter}")[0] = torch.nan
    decoder = NativeDecoder(model, int8=int8)
    logits, _ = decoder.step(torch.tensor([5]), decoder.start(padded(sentences([4], CPU))))
    assert logits.isnan().all()


def test_only_float32_models_use_the_native_decoder() -> None:
    assert isinstance(_make_stepper(make(DESIGNS[0], CPU, torch.float64), "float32"), TorchDecoder)
    assert isinstance(_make_stepper(make(DESIGNS[0], CPU, torch.float32), "float32"), NativeDecoder)
