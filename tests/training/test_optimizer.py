import pytest
import torch

from heed import ModelConfig, Transformer
from heed.training.optimizer import EMA, cosine_rate, noam_rate

CONFIG = ModelConfig(vocab_size=10, d_model=8, heads=2, encoder_layers=1, decoder_layers=1, d_ff=8)
NAME = "vocabulary.embedding.weight"


def test_the_rate_rises_in_a_line_and_falls_with_the_root() -> None:
    rates = [noam_rate(step, 512, 4000) for step in range(1, 20_001)]
    assert max(rates) == rates[3999] == pytest.approx(512**-0.5 * 4000**-0.5)
    assert rates[1999] == pytest.approx(rates[3999] / 2)
    assert rates[15_999] == pytest.approx(rates[3999] / 2)
    assert noam_rate(7, 512, 4000, factor=2.0) == pytest.approx(2 * rates[6])


def test_the_cosine_rate_rises_in_a_line_and_ends_at_zero() -> None:
    rates = [cosine_rate(step, max_steps=1000, warmup_steps=100, peak=0.5) for step in range(1, 1001)]
    assert rates[49] == pytest.approx(0.25)
    assert max(rates) == rates[99] == pytest.approx(0.5)
    assert rates[549] == pytest.approx(0.25)
    assert rates[999] == pytest.approx(0.0)


def test_the_ema_is_its_formula_and_forgets_where_it_began() -> None:
    model = Transformer(CONFIG)
    ema = EMA(model, decay=0.5)
    weight = model.get_parameter(NAME)
    expected = weight.detach().clone()
    for step in range(1, 20):
        with torch.no_grad():
            weight.add_(torch.randn_like(weight))
        ema.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * weight.detach()
    with ema.swapped_in():
        torch.testing.assert_close(model.get_parameter(NAME), expected)


def test_the_ema_takes_the_weights_place_and_gives_it_back() -> None:
    model = Transformer(CONFIG)
    ema = EMA(model, decay=0.9)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1.0)
    own = {name: weight.clone() for name, weight in model.state_dict().items()}
    with ema.swapped_in() as given:
        for name, weight in model.state_dict().items():
            assert torch.equal(weight, before[name])
            assert torch.equal(given[name], own[name])
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, own[name])


def test_an_ema_that_is_told_on_the_device_to_skip_stays_as_it_is_and_is_else_the_same() -> None:
    model = Transformer(CONFIG)
    plain, told = EMA(model, decay=0.5), EMA(model, decay=0.5)
    for step, skip in enumerate((0.0, 1.0, 0.0), start=1):
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight))
        before = {name: mean.clone() for name, mean in told._average.items()}
        if not skip:
            plain.update(step)
        told.update(step, torch.tensor(skip))
        for name, mean in told._average.items():
            assert torch.equal(mean, before[name]) == bool(skip)
            torch.testing.assert_close(mean, plain._average[name])
