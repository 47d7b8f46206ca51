"""The cost of length: self-attention grows with the square of it, recurrence in proportion (paper, table 1).

Measured is the time of a training step (forward and backward pass) of an encoder on one sequence.
"""

import torch

from heed.claims.claim import Context
from heed.claims.result import Panel, Scale, Series, Verdict
from heed.claims.timing import device_of, seconds
from heed.config import ModelConfig
from heed.model.transformer import Transformer

_LENGTHS: dict[Scale, tuple[int, ...]] = {
    "smallest": (16, 32),
    "small": (64, 128, 256, 512, 1024, 2048, 4096),
    "full": (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384),
}
_MIXERS = ("attention", "convolution", "lstm")
_SHAPE = {"d_model": 128, "heads": 4, "d_ff": 512, "encoder_layers": 2, "decoder_layers": 1}


def measure(context: Context) -> list[Panel]:
    """Seconds per step by length; each seed is one measurement."""
    lengths = _LENGTHS[context.scale]
    device = device_of(context)
    series = []
    for mixer in _MIXERS:
        config = ModelConfig.model_validate({"vocab_size": 100, "norm": "pre", "mixer": mixer, **_SHAPE})
        model = Transformer(config).to(device)
        values = [[_step_seconds(model, length, device) for _ in context.seeds] for length in lengths]
        series.append(Series(mixer, [float(length) for length in lengths], values))
    return [Panel("tokens in the sequence", "seconds per training step", series, log="xy")]


def _step_seconds(model: Transformer, length: int, device: torch.device) -> float:
    src = torch.randint(3, 100, (1, length), device=device)

    def step() -> None:
        model.zero_grad()
        model.encode(src).sum().backward()

    return seconds(step, device)


def judge(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether doubling the longest length costs attention four times, and recurrence twice."""
    (panel,) = panels
    before, longest = panel.series[0].x[-2:]
    growth = {series.name: series.at(longest) / series.at(before) for series in panel.series}
    attention, lstm = panel.named("attention"), panel.named("lstm")
    faster = [length for length in attention.x if attention.at(length) <= lstm.at(length)]
    crossover = f"at all measured lengths above {max(faster):,.0f} tokens" if faster else "at all measured lengths"
    finding = (
        f"From {before:,.0f} to {longest:,.0f} tokens the time grows {growth['attention']:.1f} times with attention, "
        f"{growth['lstm']:.1f} times with an LSTM and {growth['convolution']:.1f} times with convolution. Attention is "
        f"slower than the LSTM {crossover}."
    )
    if growth["attention"] > 3 and growth["lstm"] < 2.5:
        return "holds", finding
    return ("holds in part" if growth["attention"] > growth["lstm"] else "does not hold here"), finding
