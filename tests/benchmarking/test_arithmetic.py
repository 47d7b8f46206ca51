import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from heed import ModelConfig, Transformer
from heed.benchmarking.limits import SearchWorkload, WeightCounts, training_flops

SMALL = {"vocab_size": 23, "d_model": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 3, "d_ff": 40}
CONFIGS = [
    ModelConfig.model_validate({**SMALL, **other})
    for other in ({}, {"activation": "swiglu"}, {"encoder_layers": 3, "decoder_layers": 1, "norm": "pre"})
]
each_config = pytest.mark.parametrize("config", CONFIGS, ids=["relu", "swiglu", "deep"])


def counted(counter: FlopCounterMode) -> int:
    """Operations of products with weights, as torch counts them: attention's own are of another kind."""
    kinds = (torch.ops.aten.mm, torch.ops.aten.addmm)
    return sum(number for kind, number in counter.get_flop_counts()["Global"].items() if kind in kinds)


@each_config
def test_every_matrix_of_a_model_is_counted_once(config: ModelConfig) -> None:
    weights = WeightCounts.of(config)
    matrices = sum(weight.numel() for weight in Transformer(config).parameters() if weight.dim() == 2)
    assert weights.source + weights.target == matrices


@each_config
def test_the_operations_of_learning_are_those_torch_counts(config: ModelConfig) -> None:
    model, src, tgt_in = Transformer(config), torch.full((2, 5), 7), torch.full((2, 9), 8)
    with FlopCounterMode(display=False) as counter:
        model(src, tgt_in).sum().backward()
    assert counted(counter) == training_flops(config, 2 * 5, 2 * 9)


@each_config
def test_the_operations_of_a_search_are_those_torch_counts(config: ModelConfig) -> None:
    model, beam = Transformer(config).eval(), 3
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        cache = model.start(torch.full((2, 5), 7)).select(torch.zeros(2, beam, dtype=torch.int64))
        for _ in range(4):
            _, cache = model.step(torch.full((2 * beam, 1), 8), cache)
    assert counted(counter) == SearchWorkload(2, beam, 5, 4).operations(config)


def test_one_sentence_waits_for_memory_and_many_for_arithmetic() -> None:
    config = CONFIGS[0]
    weights = WeightCounts.of(config)
    one, many = SearchWorkload(1, 1, 5, 4), SearchWorkload(64, 1, 5, 4)
    reading = (weights.source + 4 * weights.target) * 4 / 1e9
    assert one.roofline_seconds(config, 100e9, 1e9, 4) == many.roofline_seconds(config, 1e15, 1e9, 4) == reading
    assert many.roofline_seconds(config, 100e9, 1e12, 4) == 64 * one.operations(config) / 100e9
    assert one.roofline_seconds(config, 100e9, 1e9, 1) == reading / 4
