"""The path between two positions: how much of a gradient arrives from a token at a distance (paper, section 4).

Untrained encoders of the same depth and width read random tokens; measured is the gradient of the last position's
output with respect to the embedding of each earlier token.
"""

from typing import cast

import torch

from heed.claims.claim import Context
from heed.claims.result import Panel, Scale, Series, Verdict
from heed.config import ModelConfig
from heed.model.attention import fused_attention
from heed.model.layers import Encoder
from heed.model.layout import AttentionPattern, Padded
from heed.model.rivals.layers import RivalEncoder
from heed.model.transformer import Transformer

_LAYERS, _WIDTH, _ROWS = 4, 64, 8
_DISTANCES: dict[Scale, tuple[int, ...]] = {
    "smallest": (1, 8),
    "small": (1, 2, 3, 4, 6, 8, 16, 32, 64, 128),
    "full": (1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256, 512),
}
MIXERS = ("attention", "convolution", "gru", "lstm")


def measure(context: Context) -> list[Panel]:
    """The norm of the gradient by distance, relative to that at distance 1."""
    distances = _DISTANCES[context.scale]
    series = []
    for mixer in MIXERS:
        norms = [_gradient_norms(mixer, distances, seed) for seed in context.seeds]
        values = [[norm[index] / norm[0] for norm in norms] for index in range(len(distances))]
        series.append(Series(mixer, [float(distance) for distance in distances], values))
    label = "gradient of the last output by an earlier token, relative to distance 1"
    return [Panel("distance in tokens", label, series, log="xy")]


def _gradient_norms(mixer: str, distances: tuple[int, ...], seed: int) -> list[float]:
    torch.manual_seed(seed)
    shape = {"d_model": _WIDTH, "heads": 4, "d_ff": 4 * _WIDTH, "encoder_layers": _LAYERS, "decoder_layers": 1}
    config = ModelConfig.model_validate({"vocab_size": 100, "norm": "pre", "mixer": mixer, **shape})
    model = Transformer(config).eval()
    src = torch.randint(3, 100, (_ROWS, max(distances) + 1))
    layout = Padded.from_mask(torch.ones_like(src, dtype=torch.bool))
    embedded = model.vocabulary.embed_source(src).detach().requires_grad_()
    encoder = cast("Encoder | RivalEncoder", model.encoder)
    memory = encoder(embedded, AttentionPattern.between(layout, layout), fused_attention)
    (gradient,) = torch.autograd.grad((memory[:, -1] * torch.randn(_ROWS, _WIDTH)).sum(), embedded)
    norms = gradient.norm(dim=-1).mean(0)
    return [norms[-1 - distance].item() for distance in distances]


def judge(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether attention keeps the gradient at the largest distance and the others lose it."""
    (panel,) = panels
    far = panel.series[0].x[-1]
    shares = {series.name: series.at(far) for series in panel.series}
    attention, *rivals = shares.values()
    described = ", ".join(
        f"{name} {share:.0%}" if share >= 0.01 else f"{name} {share:.0e}" if share else f"{name} nothing"
        for name, share in shares.items()
    )
    finding = f"Of the gradient at distance 1, this much is left at distance {far:.0f}: {described}."
    if attention > 0.5 and max(rivals) < 0.1:
        return "holds", finding
    return ("holds in part" if attention > max(rivals) else "does not hold here"), finding
