"""Residual connections: whether gradients reach the lower layers, and models train, without them (paper, 3.1).

Measured in untrained encoders by depth: the gradient of the first layer's weights relative to that of the last one's,
and how different the tokens of a sentence still are in the output (attention averages, so without residuals they
become equal: Dong et al. 2021). In training: the loss of a shallow and a deep model.
"""

from collections.abc import Callable
from typing import Any

import torch

from heed.claims.claim import Context
from heed.claims.depth import layers_of
from heed.claims.result import Panel, Scale, Series, Verdict, is_less
from heed.claims.translation import LOSS, curves, train_variants
from heed.config import ModelConfig
from heed.model.transformer import Transformer

_DEPTHS: dict[Scale, tuple[int, ...]] = {
    "smallest": (2, 4),
    "small": (2, 4, 8, 16, 32),
    "full": (2, 4, 8, 16, 32, 64),
}
_DEEP: dict[Scale, int] = {"smallest": 3, "small": 6, "full": 8}
WITH, WITHOUT = "with residuals", "without residuals"
_REMOVED = {"model.without": "residuals"}


def measure(context: Context) -> list[Panel]:
    """The gradient at the bottom of an untrained encoder by depth, and the learning curves of trained models."""
    deep = _DEEP[context.scale]
    variants = {
        f"2 layers, {WITH}": {},
        f"2 layers, {WITHOUT}": _REMOVED,
        f"{deep} layers, {WITH}": layers_of(deep),
        f"{deep} layers, {WITHOUT}": {**layers_of(deep), **_REMOVED},
    }
    learning = curves(train_variants(context, variants), LOSS)
    return [
        _by_depth(context, "gradient of the first layer / of the last layer", _gradient_ratio, log="xy"),
        _by_depth(context, "share of the output in which tokens differ", _difference, log="xy"),
        learning,
    ]


def _by_depth(context: Context, label: str, measured: Callable[[Transformer], float], log: str) -> Panel:
    """A number of untrained models by depth."""
    depths, series = _DEPTHS[context.scale], []
    for name, without in ((WITH, None), (WITHOUT, "residuals")):
        values = [[measured(_untrained(depth, without, seed)) for seed in context.seeds] for depth in depths]
        series.append(Series(name, [float(depth) for depth in depths], values))
    return Panel("encoder layers", label, series, log)


def _untrained(depth: int, without: str | None, seed: int) -> Transformer:
    torch.manual_seed(seed)
    settings: dict[str, Any] = {"vocab_size": 100, "d_model": 64, "heads": 4, "d_ff": 256, "encoder_layers": depth}
    config = ModelConfig.model_validate({**settings, "decoder_layers": 1, "norm": "pre", "without": without})
    return Transformer(config).eval()


def _gradient_ratio(model: Transformer) -> float:
    src, tgt = (torch.randint(3, 100, (8, 16)) for _ in range(2))
    torch.nn.functional.cross_entropy(model(src, tgt[:, :-1]).flatten(0, 1), tgt[:, 1:].flatten()).backward()
    layers = model.get_submodule("encoder.layers")
    first, last = (
        torch.stack(
            [weight.grad.norm() for weight in layer.parameters() if weight.grad is not None and weight.ndim == 2]
        ).norm()
        for layer in (layers.get_submodule("0"), layers.get_submodule(f"{model.config.encoder_layers - 1}"))
    )
    return (first / last).item()


@torch.no_grad()
def _difference(model: Transformer) -> float:
    """The norm of the encoder's output without what all tokens of a sentence have in common, relative to the whole."""
    memory = model.encode(torch.randint(3, 100, (8, 16)))
    return ((memory - memory.mean(1, keepdim=True)).norm() / memory.norm()).item()


def judge(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether gradients vanish without residuals alone, and deep models fail without them alone."""
    gradients, differences, loss = panels
    deepest, end = gradients.series[0].x[-1], loss.series[0].x[-1]
    (kept, lost), (different, equal) = (
        [panel.named(name).at(deepest) for name in (WITH, WITHOUT)] for panel in (gradients, differences)
    )
    losses = ", ".join(f"{series.name} {series.at(end):.2f}" for series in loss.series)
    finding = (
        f"In an untrained encoder of {deepest:.0f} layers the first layer's gradient is {kept:.2g} times the last "
        f"layer's with residuals and {lost:.2g} times without; tokens differ in {different:.2g} and {equal:.2g} of "
        f"the output. Validation loss after {end:,.0f} steps: {losses}."
    )
    whole, broken = (series.values_at(end) for series in loss.series[2:])
    vanishes, fails = lost < kept / 10, is_less(whole, broken)
    return ("holds" if vanishes and fails else "holds in part" if vanishes or fails else "does not hold here"), finding
