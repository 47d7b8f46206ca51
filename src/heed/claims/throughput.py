"""Training throughput of whole models by sentence length: where self-attention is faster than recurrence (section 4).

A training step is the forward and backward pass of an encoder-decoder in PyTorch's own modules, for all models alike. A
batch has the same number of tokens at every length, so a shorter length means more sentences. All models have the same
number of parameters within 5 %.
"""

import torch
from torch.nn import functional

from heed.claims.claim import Context
from heed.claims.cost import device_of, seconds
from heed.claims.parameters import parameters, with_parameters
from heed.claims.quality import MODELS, TRANSFORMER, VECTOR
from heed.claims.result import Panel, Scale, Series, Verdict, is_less
from heed.config import ModelConfig
from heed.model.transformer import Transformer

WIDTH, _VOCAB, _FIRST = 128, 1000, 3
_SHAPE = {"d_model": WIDTH, "d_ff": 4 * WIDTH, "heads": 4, "encoder_layers": 2, "decoder_layers": 2, "norm": "pre"}
_NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
_TOKENS: dict[Scale, int] = {"smallest": 32, "small": 2048, "full": 32_768}  # target tokens per batch
_LENGTHS: dict[Scale, tuple[int, ...]] = {
    "smallest": (16, 32),
    "small": (8, 32, 128, 512, 2048),
    "full": (8, 32, 128, 512, 2048, 8192),
}
RECURRENT = ("LSTM, attention", "GRU, attention")


def measure(context: Context) -> list[Panel]:
    """Target tokens per second of training, by tokens in each sentence; each seed is one measurement."""
    device, models = device_of(context), {}
    lengths, target = _LENGTHS[context.scale], parameters(_SHAPE)
    for name, rival in MODELS.items():
        if name != VECTOR:
            shape = with_parameters({**_SHAPE, **rival}, target)
            config = ModelConfig.model_validate({**shape, **_NO_DROPOUT, "vocab_size": _VOCAB})
            models[name] = Transformer(config).to(device)
    runs: dict[str, list[list[float]]] = {name: [] for name in models}
    for number in (0, *context.seeds):  # the first warms up and is not recorded
        for name, model in models.items():  # in turn, so that other work on the machine meets them all
            speeds = [_tokens_per_second(model, length, context.scale) for length in lengths]
            runs[name] += [speeds] if number else []
        context.report(f"measurement {number} of {len(context.seeds)}" if number else "warmed up")
    series = [Series.of_runs(name, lengths, of_model) for name, of_model in runs.items()]
    return [Panel("tokens in each sentence", "target tokens per second of training", series, log="xy")]


def _tokens_per_second(model: Transformer, length: int, scale: Scale) -> float:
    device, rows = model.vocabulary.embedding.weight.device, _TOKENS[scale] // length
    src, tgt = (torch.randint(_FIRST, _VOCAB, (rows, length), device=device) for _ in range(2))

    def step() -> None:
        model.zero_grad()
        functional.cross_entropy(model(src, tgt).flatten(0, 1), tgt.flatten()).backward()

    return rows * length / seconds(step, device, runs=3)


def judge(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether the Transformer is faster than both recurrent models at every length below the width, and not beyond."""
    (panel,) = panels
    transformer = panel.named(TRANSFORMER)
    described = "; ".join(
        f"{series.name} " + ", ".join(f"{speed:,.0f}" for speed in series.means()) for series in panel.series
    )
    lengths = ", ".join(f"{length:,.0f}" for length in transformer.x)
    finding = f"Target tokens per second of training with sentences of {lengths} tokens: {described}."
    faster = [
        all(_is_faster(transformer.values_at(length), panel.named(name).values_at(length)) for name in RECURRENT)
        for length in transformer.x
        if length < WIDTH
    ]
    slowest_at_the_end = all(_is_faster(panel.named(name).values[-1], transformer.values[-1]) for name in RECURRENT)
    if all(faster):
        return ("holds" if slowest_at_the_end else "holds in part"), finding
    return ("holds in part" if any(faster) else "does not hold here"), finding


def _is_faster(speeds: list[float], others: list[float]) -> bool:
    """Whether speeds are higher by more than chance explains; those of one round met the same machine."""
    ratios = [speed / other for speed, other in zip(speeds, others, strict=True)]
    return is_less([1.0] * len(ratios), ratios)
