import pytest
import torch

from heed import ModelConfig
from heed.backends.cpu.decoder import NativeEncoder
from heed.backends.cpu.library import missing_for_compiled_code
from heed.errors import InputError
from heed.model.layout import Packed
from tests.model.examples import COMBINATIONS, FIRST_WORD, SHAPE, VOCAB, make

CPU = torch.device("cpu")
DESIGNS = [config for config in COMBINATIONS if config.kind == "encoder-decoder"]
ODD = ModelConfig.model_validate({**SHAPE, "d_model": 84, "heads": 3, "d_ff": 131, "vocab_size": 203})

pytestmark = pytest.mark.skipif(missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code()))


def sentences(lengths: list[int]) -> tuple[torch.Tensor, Packed]:
    draw = torch.Generator().manual_seed(1)
    return torch.randint(FIRST_WORD, VOCAB, (sum(lengths),), generator=draw), Packed.from_lengths(lengths)


@pytest.mark.parametrize("config", [*DESIGNS, ODD], ids=lambda one: f"{one.norm}-{one.positions}-{one.activation}")
@torch.no_grad()
def test_it_encodes_as_the_model_does(config: ModelConfig) -> None:
    model = make(config, CPU, torch.float32)
    for lengths in ([5, 1, 3, 11], [7], [2] * 9):
        src, layout = sentences(lengths)
        found = NativeEncoder(model, int8=False)(src, layout)
        torch.testing.assert_close(found, model.encode(src, layout), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@torch.no_grad()
def test_threads_share_the_work(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heed.backends.cpu.decoder.threads_for", lambda _work: threads)
    for config in (ODD, ODD.model_copy(update={"norm": "sandwich", "positions": "rotary", "activation": "swiglu"})):
        model = make(config, CPU, torch.float32)
        for lengths in ([1], [5, 1, 3, 11]):  # fewer tokens than threads too
            src, layout = sentences(lengths)
            found = NativeEncoder(model, int8=False)(src, layout)
            torch.testing.assert_close(found, model.encode(src, layout), atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_integers_only_round() -> None:
    model = make(ODD, CPU, torch.float32)
    src, layout = sentences([5, 1, 3, 11])
    found, exact = NativeEncoder(model, int8=True)(src, layout), model.encode(src, layout)
    assert not torch.equal(found, exact)
    assert (found - exact).abs().mean() < 0.03 * exact.std()


def test_an_id_that_is_no_word_is_named() -> None:
    model = make(ODD, CPU, torch.float32)
    with pytest.raises(InputError, match="src holds id 203, outside a vocabulary of 203 tokens"):
        NativeEncoder(model, int8=False)(torch.tensor([5, 203]), Packed.from_lengths([2]))
