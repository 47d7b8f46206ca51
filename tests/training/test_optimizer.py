import pytest
import torch

from heed import ModelConfig, Transformer
from heed.training.optimizer import EMA, cosine_rate, noam_rate

CONFIG = ModelConfig(vocab_size=10, d_model=8, heads=2, encoder_layers=1, decoder_layers=1, d_ff=8)
NAME = "vocabulary.embedding.weight"


def test_the_papers_schedule_warms_up_linearly_and_decays_with_the_inverse_square_root() -> None:
    rates = [noam_rate(step, 512, 4000) for step in range(1, 16_001)]
    assert max(rates) == rates[3999] == pytest.approx(512**-0.5 * 4000**-0.5)
    assert rates[1999] == pytest.approx(rates[3999] / 2)
    assert rates[15_999] == pytest.approx(rates[3999] / 2)
    assert noam_rate(7, 512, 4000, factor=2.0) == pytest.approx(2 * rates[6])


def test_the_cosine_schedule_warms_up_linearly_and_ends_at_zero() -> None:
    rates = [cosine_rate(step, max_steps=1000, warmup_steps=100, peak=0.5) for step in range(1, 1001)]
    assert rates[49] == pytest.approx(0.25)
    assert max(rates) == rates[99] == pytest.approx(0.5)
    assert rates[549] == pytest.approx(0.25)
    assert rates[999] == pytest.approx(0.0)


def test_the_ema_is_its_formula_with_faster_updates_at_first() -> None:
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


def test_swapping_in_the_ema_restores_the_raw_weights_afterwards() -> None:
    model = Transformer(CONFIG)
    ema = EMA(model, decay=0.9)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1.0)
    raw = {name: weight.clone() for name, weight in model.state_dict().items()}
    with ema.swapped_in() as yielded:
        for name, weight in model.state_dict().items():
            assert torch.equal(weight, before[name])
            assert torch.equal(yielded[name], raw[name])
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, raw[name])


def test_the_skip_scalar_leaves_the_ema_unchanged_exactly_where_it_is_one() -> None:
    model = Transformer(CONFIG)
    plain, skipping = EMA(model, decay=0.5), EMA(model, decay=0.5)
    for step, skip in enumerate((0.0, 1.0, 0.0), start=1):
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight))
        before = {name: average.clone() for name, average in skipping._average.items()}
        if not skip:
            plain.update(step)
        skipping.update(step, torch.tensor(skip))
        for name, average in skipping._average.items():
            assert torch.equal(average, before[name]) == bool(skip)
            torch.testing.assert_close(average, plain._average[name])
