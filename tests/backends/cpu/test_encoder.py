import pytest
import torch

from heed import ModelConfig
from heed.backends.cpu.decoder import NativeEncoder
from heed.backends.cpu.library import missing_for_compiled_code
from heed.errors import InputError
from heed.model.layout import Packed
from tests.backends.decoder_steps import DESIGNS, design_name
from tests.model.examples import FIRST_WORD, SHAPE, VOCAB, make

CPU = torch.device("cpu")
ODD_CONFIG = ModelConfig.model_validate({**SHAPE, "d_model": 84, "heads": 3, "d_ff": 131, "vocab_size": 203})

pytestmark = pytest.mark.skipif(missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code()))


def packed_sentences(lengths: list[int]) -> tuple[torch.Tensor, Packed]:
    random = torch.Generator().manual_seed(1)
    return torch.randint(FIRST_WORD, VOCAB, (sum(lengths),), generator=random), Packed.from_lengths(lengths)


@pytest.mark.parametrize("config", [*DESIGNS, ODD_CONFIG], ids=design_name)
@torch.no_grad()
def test_native_encoder_output_equals_the_models(config: ModelConfig) -> None:
    model = make(config, CPU, torch.float32)
    for lengths in ([5, 1, 3, 11], [7], [2] * 9):
        src, layout = packed_sentences(lengths)
        output = NativeEncoder(model, int8=False)(src, layout)
        torch.testing.assert_close(output, model.encode(src, layout), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@torch.no_grad()
def test_native_encoder_output_equals_the_models_for_any_number_of_threads(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heed.backends.cpu.decoder.threads_for", lambda _work: threads)
    for config in (
        ODD_CONFIG,
        ODD_CONFIG.model_copy(update={"norm": "sandwich", "positions": "rotary", "activation": "swiglu"}),
    ):
        model = make(config, CPU, torch.float32)
        for lengths in ([1], [5, 1, 3, 11]):  # the first has fewer tokens than threads
            src, layout = packed_sentences(lengths)
            output = NativeEncoder(model, int8=False)(src, layout)
            torch.testing.assert_close(output, model.encode(src, layout), atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_int8_encoder_output_differs_only_by_rounding() -> None:
    model = make(ODD_CONFIG, CPU, torch.float32)
    src, layout = packed_sentences([5, 1, 3, 11])
    output, exact = NativeEncoder(model, int8=True)(src, layout), model.encode(src, layout)
    assert not torch.equal(output, exact)
    assert (output - exact).abs().mean() < 0.03 * exact.std()


def test_an_id_outside_the_vocabulary_is_refused_by_value() -> None:
    model = make(ODD_CONFIG, CPU, torch.float32)
    with pytest.raises(InputError, match="src holds id 203, outside a vocabulary of 203 tokens"):
        NativeEncoder(model, int8=False)(torch.tensor([5, 203]), Packed.from_lengths([2]))
