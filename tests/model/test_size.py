from typing import Any

import pytest

from heed import ModelConfig, Transformer
from heed.model.size import parameter_counts
from tests.model.examples import RIVALS, SHAPE, every_combination


def count(config: ModelConfig) -> int:
    return sum(weight.numel() for weight in Transformer(config).parameters())


@every_combination
def test_parameter_counts_sum_to_the_parameters_of_the_model(config: ModelConfig) -> None:
    assert sum(part.total for part in parameter_counts(config)) == count(config)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("source", [None, 30])
@pytest.mark.parametrize("bias", [True, False])
def test_parameter_counts_are_right_for_every_way_of_tying(tied: bool, source: int | None, bias: bool) -> None:
    config = ModelConfig(**SHAPE, tie_embeddings=tied, source_vocab_size=source, output_bias=bias)
    assert sum(part.total for part in parameter_counts(config)) == count(config)


@pytest.mark.parametrize("settings", [{"norm": "sandwich", "activation": "swiglu", "tie_embeddings": False}, *RIVALS])
def test_each_formula_evaluates_to_its_count(settings: dict[str, Any]) -> None:
    for part in parameter_counts(ModelConfig.model_validate({**SHAPE, **settings})):
        assert eval(part.formula.replace("×", "*")) == part.per_copy  # noqa: S307 - our own formula


def test_the_base_model_has_the_papers_size() -> None:
    base = ModelConfig(vocab_size=37_000)
    assert base == ModelConfig.preset("base", vocab_size=37_000)
    attention = 4 * (512 * 512 + 512)
    feed_forward = (512 * 2048 + 2048) + (2048 * 512 + 512)
    encoder_layer = attention + feed_forward + 2 * 2 * 512
    decoder_layer = 2 * attention + feed_forward + 3 * 2 * 512
    assert count(base) == 37_000 * 512 + 6 * encoder_layer + 6 * decoder_layer == 63_082_496  # "65 × 10⁶"


def test_the_big_model_has_the_papers_size() -> None:
    big = ModelConfig.preset("big", vocab_size=37_000)
    assert sum(part.total for part in parameter_counts(big)) == 214_245_376  # "213 × 10⁶"
