import pytest
import torch
from torch import nn

from heed import ModelConfig, SearchConfig
from heed.backends.torch.decoder import LeanDecoder
from heed.backends.torch.int8 import Int8Linear, int8_decoder
from heed.decoding.engine import Stepwise
from heed.decoding.steps import begin, begin_with
from heed.errors import InputError
from tests.model.examples import COMBINATIONS, make, padded, sentences

CPU = torch.device("cpu")
DESIGNS = [config for config in COMBINATIONS if config.kind == "encoder-decoder"]


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_in_integers_is_near_the_product(has_bias: bool) -> None:
    plain = nn.Linear(64, 48, bias=has_bias)
    with torch.no_grad():
        plain.weight[5] *= 1000  # a scale for each row: one large row must not spoil the others
        plain.weight[7] = 0
    x = torch.randn(3, 10, 64)
    with torch.no_grad():
        wanted, found = plain(x), Int8Linear(plain.weight, plain.bias)(x)
    rows = (found - wanted).norm(dim=(0, 1)) / wanted.norm(dim=(0, 1)).clamp(min=1e-6)
    assert rows.max() < 0.03
    assert found.shape == wanted.shape


@pytest.mark.parametrize("by", ["our-own-code", "torch"])
@pytest.mark.parametrize("config", DESIGNS, ids=lambda one: f"{one.norm}-{one.positions}-{one.activation}")
@torch.no_grad()
def test_every_design_steps_in_integers_near_where_it_steps_without(
    config: ModelConfig, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "torch":
        for file in ("int8", "compiled_step"):
            monkeypatch.setattr(f"heed.kernels.{file}.integers_are_quick", lambda: False)
    model = make(config, CPU, torch.float32)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    src = padded(sentences([5, 2], CPU))
    found = []
    for decoder in (LeanDecoder(model), int8_decoder(model)):
        state, logits = decoder.start(src), []
        for ids in ([1, 1], [4, 5], [6, 7]):
            out, state = decoder.step(torch.tensor(ids), state)
            logits.append(out)
        found.append(torch.stack(logits))
    plain, integers = found
    assert 0 < (plain - integers).norm() / plain.norm() < 0.1
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert all(isinstance(part, nn.Linear) for name, part in model.named_modules() if name.endswith("query"))


def test_a_search_in_integers_ends_and_scores_near_ours() -> None:
    model = make(DESIGNS[0], CPU, torch.float32)
    decoder = int8_decoder(model)
    sources, config = [[5, 6, 7], [8, 9]], SearchConfig(beam=3, max_length=8)
    ours, integers = (
        Stepwise(start, [model]).search(sources, config, [0, 1])
        for start in (
            lambda some: begin([model], some),
            lambda some: begin_with([decoder], model.config, some, CPU),
        )
    )
    for one, other in zip(ours, integers, strict=True):
        assert abs(one[0].score - other[0].score) < 0.1


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_half_a_model_is_refused(kind: str) -> None:
    config = next(config for config in COMBINATIONS if config.kind == kind)
    with pytest.raises(InputError, match="integers of 8 bits are for models with encoder and decoder, on a CPU"):
        int8_decoder(make(config, CPU, torch.float32))


def test_a_cpu_without_the_instructions_is_told_what_else_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heed.backends.torch.int8.can_multiply_integers", lambda: False)
    with pytest.raises(InputError, match=r"this CPU lacks the instructions \(AVX2\) .* use --engine heed"):
        int8_decoder(make(DESIGNS[0], CPU, torch.float32))
