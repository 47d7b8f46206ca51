"""A step in compiled code is the model's own step, for any design, shape and number of threads."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from heed import ModelConfig, Transformer
from heed.backends.cpu.decoder import NativeDecoder
from heed.backends.cpu.library import has_int8, missing_for_compiled_code
from heed.backends.select import _make_stepper
from heed.backends.torch.decoder import TorchDecoder
from heed.backends.torch.linear import plain_linear
from tests.backends.cpu.test_packed_linear import plain_integers
from tests.backends.torch.test_decoder import ALONE, DESIGNS, walk
from tests.model.examples import FIRST_WORD, SHAPE, make, padded, sentences

CPU = torch.device("cpu")
ODD = {"d_model": 84, "heads": 3, "d_ff": 131, "vocab_size": 203}  # nothing a multiple of what is done at once

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
    return NativeDecoder(model, plain_linear)


@pytest.mark.parametrize("config", [*DESIGNS, *ALONE], ids=lambda one: f"{one.norm}-{one.positions}-{one.activation}")
@torch.no_grad()
def test_it_is_the_models_own_step(config: ModelConfig) -> None:
    model = make(config.model_copy(update={"max_length": 64}), CPU, torch.float32)
    src = padded(sentences([5, 1, 3], CPU))
    lean = native(model)
    for found, own in zip(walk(lean, src, column=False), walk(model, src, column=True), strict=True):
        torch.testing.assert_close(found, own, atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_sizes_may_be_odd_and_threads_many(threads: int) -> None:
    model = make(ModelConfig.model_validate({**SHAPE, **ODD}), CPU, torch.float32)
    src = padded(sentences([5, 1, 3], CPU))
    lean = native(model)
    for found, own in zip(walk(lean, src, column=False), walk(model, src, column=True), strict=True):
        torch.testing.assert_close(found, own, atol=2e-5, rtol=1e-4)
    assert threads == torch.get_num_threads()


@pytest.mark.skipif(not has_int8(), reason="this processor has no instructions for products of bytes")
@pytest.mark.parametrize("sizes", [{}, ODD, {"d_model": 192, "heads": 3, "d_ff": 256}], ids=["small", "odd", "wide"])
@torch.no_grad()
def test_in_integers_it_is_the_plain_step_in_integers(sizes: dict[str, int]) -> None:
    model = make(ModelConfig.model_validate({**SHAPE, **sizes}), CPU, torch.float32)
    src = padded(sentences([5, 1, 3], CPU))
    ours = NativeDecoder(model, plain_integers, int8=True)
    for found, plain in zip(
        walk(ours, src, column=False), walk(TorchDecoder(model, plain_integers), src, column=False), strict=True
    ):
        # A number that lies between two integers may go either way.
        assert (found - plain).abs().mean() < 0.01 * plain.std()
        assert (found - plain).abs().max() < 0.3 * plain.std()


@torch.no_grad()
def test_several_threads_may_step_at_once() -> None:
    model = make(ModelConfig.model_validate({**SHAPE, **ODD}), CPU, torch.float32)
    lean, src = native(model), padded(sentences([5, 1, 3], CPU))
    expected = walk(lean, src, column=False)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: walk(lean, src, column=False), range(8)):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_many_rows_are_no_matter() -> None:
    model = make(ModelConfig.model_validate({**SHAPE, **ODD}), CPU, torch.float32)
    ours, plain = native(model), TorchDecoder(model, plain_linear)
    src = padded(sentences([4, 2, 7] * 9, CPU))
    one, other, ids = ours.start(src), plain.start(src), torch.arange(27) + FIRST_WORD
    for width in (1, 3):
        rows = torch.arange(27)[:, None].expand(-1, width)
        one, other = one.select(rows), other.select(rows)
        (found, one), (expected, other) = (
            lean.step(ids.repeat_interleave(width), state) for lean, state in ((ours, one), (plain, other))
        )
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.usefixtures("for_avx2")
@torch.no_grad()
def test_processors_without_avx512_step_the_same() -> None:
    assert not has_int8()
    for sizes in (ODD, {}):
        model = make(ModelConfig.model_validate({**SHAPE, **sizes}), CPU, torch.float32)
        src = padded(sentences([5, 1, 3], CPU))
        lean = native(model)
        for found, own in zip(walk(lean, src, column=False), walk(model, src, column=True), strict=True):
            torch.testing.assert_close(found, own, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize("place", ["feed_forward.widen.bias", "attention.query.bias", "cross_attention.value.weight"])
@torch.no_grad()
def test_what_is_no_number_is_not_hidden(place: str, integers: bool) -> None:
    if integers and not has_int8():
        pytest.skip("this processor has no instructions for products of bytes")
    model = make(DESIGNS[0], CPU, torch.float32)
    model.get_parameter(f"decoder.layers.0.{place}")[0] = torch.nan
    lean = NativeDecoder(model, plain_integers, int8=integers)
    logits, _ = lean.step(torch.tensor([5]), lean.start(padded(sentences([4], CPU))))
    assert logits.isnan().all()


def test_what_is_not_float32_takes_the_other_way() -> None:
    assert isinstance(_make_stepper(make(DESIGNS[0], CPU, torch.float64), "float32"), TorchDecoder)
    assert isinstance(_make_stepper(make(DESIGNS[0], CPU, torch.float32), "float32"), NativeDecoder)
