import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from heed import ModelConfig, Transformer
from heed.benchmarking.limits import SearchWorkload, WeightCounts, training_flops

SMALL = {"vocab_size": 23, "d_model": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 3, "d_ff": 40}
CONFIGS = [
    ModelConfig.model_validate({**SMALL, **settings})
    for settings in ({}, {"activation": "swiglu"}, {"encoder_layers": 3, "decoder_layers": 1, "norm": "pre"})
]
each_config = pytest.mark.parametrize("config", CONFIGS, ids=["relu", "swiglu", "deep"])


def counted(counter: FlopCounterMode) -> int:
    """FLOPs of the linear layers, as torch counts them; attention's matmuls are other operators."""
    linear = (torch.ops.aten.mm, torch.ops.aten.addmm)
    return sum(flops for operator, flops in counter.get_flop_counts()["Global"].items() if operator in linear)


@each_config
def test_every_weight_matrix_is_counted_once(config: ModelConfig) -> None:
    weights = WeightCounts.of(config)
    matrices = sum(weight.numel() for weight in Transformer(config).parameters() if weight.dim() == 2)
    assert weights.per_source_token + weights.per_target_token == matrices


@each_config
def test_training_flops_are_those_torch_counts(config: ModelConfig) -> None:
    model, src, tgt_in = Transformer(config), torch.full((2, 5), 7), torch.full((2, 9), 8)
    with FlopCounterMode(display=False) as counter:
        model(src, tgt_in).sum().backward()
    assert counted(counter) == training_flops(config, 2 * 5, 2 * 9)


@each_config
def test_search_flops_are_those_torch_counts(config: ModelConfig) -> None:
    model, beam = Transformer(config).eval(), 3
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        cache = model.start(torch.full((2, 5), 7)).select(torch.zeros(2, beam, dtype=torch.int64))
        for _ in range(4):
            _, cache = model.step(torch.full((2 * beam, 1), 8), cache)
    assert counted(counter) == SearchWorkload(2, beam, 5, 4).flops(config)


def test_single_sentences_are_bound_by_memory_and_large_batches_by_compute() -> None:
    config = CONFIGS[0]
    weights = WeightCounts.of(config)
    single, batch = SearchWorkload(1, 1, 5, 4), SearchWorkload(64, 1, 5, 4)
    reading = (weights.per_source_token + 4 * weights.per_target_token) * 4 / 1e9
    assert single.roofline_seconds(config, 100e9, 1e9, 4) == batch.roofline_seconds(config, 1e15, 1e9, 4) == reading
    assert batch.roofline_seconds(config, 100e9, 1e12, 4) == 64 * single.flops(config) / 100e9
    assert single.roofline_seconds(config, 100e9, 1e9, 1) == reading / 4
