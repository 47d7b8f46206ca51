import torch

from heed import ModelConfig, Transformer
from heed.training.optimizer import EMA

CONFIG = ModelConfig(vocab_size=10, d_model=8, heads=2, encoder_layers=1, decoder_layers=1, d_ff=8)
NAME = "vocabulary.embedding.weight"


def test_the_mean_is_its_formula_and_forgets_where_it_began() -> None:
    model = Transformer(CONFIG)
    mean = EMA(model, decay=0.5)
    weight = model.get_parameter(NAME)
    expected = weight.detach().clone()
    for step in range(1, 20):
        with torch.no_grad():
            weight.add_(torch.randn_like(weight))
        mean.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * weight.detach()
    with mean.swapped_in():
        torch.testing.assert_close(model.get_parameter(NAME), expected)


def test_the_mean_takes_the_weights_place_and_gives_it_back() -> None:
    model = Transformer(CONFIG)
    mean = EMA(model, decay=0.9)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1.0)
    own = {name: weight.clone() for name, weight in model.state_dict().items()}
    with mean.swapped_in() as given:
        for name, weight in model.state_dict().items():
            assert torch.equal(weight, before[name])
            assert torch.equal(given[name], own[name])
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, own[name])


def test_a_mean_that_is_told_on_the_device_to_skip_stays_as_it_is_and_is_else_the_same() -> None:
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
