"""The cost of length: self-attention grows with the square of it, recurrence in proportion (paper, table 1).

Measured are time and peak memory of a training step (forward and backward pass) of one encoder layer on one sequence.
All layers have the same width and, with a feed-forward network of that width, the same number of parameters within 1 %.
Attention is measured twice: plain attention keeps the weights of all pairs of tokens for the backward pass, fused
attention computes them anew, block by block, and keeps none.
"""

from collections.abc import Mapping

import torch

from heed.claims.claim import Context
from heed.claims.cost import device_of, peak_memory, seconds
from heed.claims.result import Panel, Scale, Series, Verdict
from heed.config import ModelConfig
from heed.model.attention import AttentionFn, fused_attention, plain_attention
from heed.model.transformer import Transformer

_LENGTHS: dict[Scale, tuple[int, ...]] = {
    "smallest": (16, 32),
    "small": (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384),
    "full": (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384),
}
_LONGEST_PLAIN: dict[Scale, int] = {"smallest": 32, "small": 4096, "full": 16_384}  # beyond, it takes minutes and GiB
SHAPE = {"d_model": 128, "d_ff": 128, "heads": 4, "encoder_layers": 1, "decoder_layers": 1, "norm": "pre"}
_NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}  # with it, torch has no fused attention on a CPU
PLAIN, FUSED, CONVOLUTION, LSTM = "attention, plain", "attention, fused", "convolution", "LSTM"
MIXERS = {PLAIN: "attention", FUSED: "attention", CONVOLUTION: "convolution", LSTM: "lstm"}
_MIB = 2**20
_DOUBLINGS = 3  # of the length, over which growth is averaged


def measure(context: Context) -> list[Panel]:
    """Seconds and memory of a step by length; each seed is one measurement."""
    device, times, memory = device_of(context), [], []
    for name, mixer in MIXERS.items():
        lengths = _LENGTHS[context.scale]
        if name == PLAIN:
            lengths = tuple(length for length in lengths if length <= _LONGEST_PLAIN[context.scale])
        config = ModelConfig.model_validate({"vocab_size": 100, "mixer": mixer, **SHAPE, **_NO_DROPOUT})
        model = Transformer(config).to(device)
        attend = plain_attention if name == PLAIN else fused_attention
        costs = []
        for length in lengths:
            try:
                costs.append([_cost(model, attend, length, device) for _ in context.seeds])
            except torch.OutOfMemoryError:
                context.notes.append(f"{name} runs out of memory at {length:,} tokens")
                break
        x = [float(length) for length in lengths[: len(costs)]]
        times.append(Series(name, x, [[taken for taken, _ in of_length] for of_length in costs]))
        memory.append(Series(name, x, [[size for _, size in of_length] for of_length in costs]))
        context.report(f"{name}: {times[-1].means()[-1]:.3g} s and {memory[-1].means()[-1]:.0f} MiB per step")
    label = "tokens in the sequence"
    return [
        Panel(label, "seconds per training step", times, log="xy"),
        Panel(label, "peak memory of a training step, MiB", memory, log="xy"),
    ]


def _cost(model: Transformer, attend: AttentionFn, length: int, device: torch.device) -> tuple[float, float]:
    """The seconds and the MiB of a training step. The memory is that of the first of two, which may still allocate."""
    src = torch.randint(3, 100, (1, length), device=device)

    def step() -> None:
        model.encode(src, attend=attend).sum().backward()

    model.zero_grad()
    size = peak_memory(step, device)
    model.zero_grad()
    return seconds(step, device, runs=1), size / _MIB


def judge(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether doubling a large length costs attention four times the time, and recurrence twice."""
    times, memory = panels
    growth = {series.name: _growth(series) for series in times.series}
    fused, lstm = times.named(FUSED), times.named(LSTM)
    faster = [length for length in fused.x if fused.at(length) <= lstm.at(length)]
    crossover = f"up to {max(faster):,.0f} tokens" if faster else "at none of the lengths"
    longest, longest_plain = fused.x[-1], memory.named(PLAIN).x[-1]
    plain, block_by_block, recurrent = (memory.named(name).at(longest_plain) for name in (PLAIN, FUSED, LSTM))
    finding = (
        f"With each of the last doublings of the length, up to {longest:,.0f} tokens (plain attention: "
        f"{longest_plain:,.0f}), the time grows by these factors: {_listed(growth)}; the memory by these: "
        f"{_listed({series.name: _growth(series) for series in memory.series})}. At {longest_plain:,.0f} tokens plain "
        f"attention takes {plain:,.0f} MiB, fused {block_by_block:,.0f} and the LSTM {recurrent:,.0f}. Fused attention "
        f"is as fast as the LSTM, or faster, {crossover}."
    )
    if min(growth[PLAIN], growth[FUSED]) > 3 and growth[LSTM] < 2.5:
        return "holds", finding
    return ("holds in part" if growth[FUSED] > growth[LSTM] else "does not hold here"), finding


def _growth(series: Series) -> float:
    """How many times as much twice the length costs: the mean of the last doublings."""
    means = series.means()
    doublings = min(_DOUBLINGS, len(means) - 1)
    return (means[-1] / means[-1 - doublings]) ** (1 / doublings)


def _listed(factors: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {factor:.1f}" for name, factor in factors.items())
