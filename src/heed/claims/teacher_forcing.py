"""Teacher forcing: in training a Transformer computes all target positions at once, a recurrence one after the other.

Measured is the time to compute the logits of a target of T tokens in one pass, against T steps of one token.
"""

import torch

from heed.claims.claim import Context
from heed.claims.cost import device_of, seconds
from heed.claims.result import Panel, Scale, Series, Verdict
from heed.config import ModelConfig
from heed.model.transformer import Transformer

_LENGTHS: dict[Scale, tuple[int, ...]] = {
    "smallest": (2, 4),
    "small": (4, 8, 16, 32, 64, 128),
    "full": (4, 8, 16, 32, 64, 128, 256, 512),
}
_SHAPE = {"d_model": 128, "heads": 4, "d_ff": 512, "encoder_layers": 2, "decoder_layers": 2}
_ROWS, _SOURCE = 16, 16  # sentences in the batch, and their source tokens
_MIXERS = ("attention", "lstm")


def measure(context: Context) -> list[Panel]:
    """How many times as fast one pass is as one step per token; each seed is one measurement."""
    lengths, device = _LENGTHS[context.scale], device_of(context)
    series = []
    for mixer in _MIXERS:
        config = ModelConfig.model_validate({"vocab_size": 1000, "norm": "pre", "mixer": mixer, **_SHAPE})
        model = Transformer(config).to(device).eval()
        values = [[_speedup(model, length, device) for _ in context.seeds] for length in lengths]
        series.append(Series(mixer, [float(length) for length in lengths], values))
    return [Panel("target tokens T", "time of T steps / time of one pass", series, log="xy")]


@torch.no_grad()
def _speedup(model: Transformer, length: int, device: torch.device) -> float:
    src, tgt_in = (torch.randint(3, 1000, (_ROWS, size), device=device) for size in (_SOURCE, length))

    def one_by_one() -> None:
        cache = model.start(src)
        for ids in tgt_in.split(1, 1):
            _, cache = model.step(ids, cache)

    return seconds(one_by_one, device) / seconds(lambda: model(src, tgt_in), device)


def judge(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether one pass wins more with attention than with recurrence, and the more the longer the target."""
    (panel,) = panels
    attention, lstm = panel.named("attention"), panel.named("lstm")
    short, long = attention.x[0], attention.x[-1]
    finding = (
        f"One pass over {long:.0f} target tokens is {attention.at(long):.1f} times as fast as {long:.0f} steps with "
        f"attention, and {lstm.at(long):.1f} times with an LSTM; over {short:.0f} tokens {attention.at(short):.1f} and "
        f"{lstm.at(short):.1f} times."
    )
    grows = attention.at(long) > 1.5 * attention.at(short)
    if grows and attention.at(long) > 1.5 * lstm.at(long):
        return "holds", finding
    return ("holds in part" if grows else "does not hold here"), finding
