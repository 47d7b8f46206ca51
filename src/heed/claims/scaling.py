"""Scaled dot products: why attention divides by √d_k (paper, section 3.2.1).

Queries and keys with independent components of mean 0 and variance 1, as at initialisation: their dot product has the
variance d_k. Measured is what the softmax over 64 keys makes of it.
"""

import math

import torch

from heed.claims.claim import Context
from heed.claims.result import Panel, Scale, Series, Verdict

KEYS = 64
_WIDTHS: dict[Scale, tuple[int, ...]] = {
    "smallest": (4, 256),
    "small": (4, 8, 16, 32, 64, 128, 256, 512, 1024),
    "full": (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048),
}
_QUERIES: dict[Scale, int] = {"smallest": 50, "small": 2000, "full": 20_000}
SCALED, UNSCALED = "Q Kᵀ / √d_k", "Q Kᵀ"


def measure(context: Context) -> list[Panel]:
    """The gradient through the softmax and the entropy of its weights, by head width."""
    widths = _WIDTHS[context.scale]
    jacobians: dict[str, list[list[float]]] = {name: [] for name in (SCALED, UNSCALED)}
    entropies: dict[str, list[list[float]]] = {name: [] for name in (SCALED, UNSCALED)}
    for width in widths:
        for name in (SCALED, UNSCALED):
            results = [_softmax(width, _QUERIES[context.scale], seed, scaled=name == SCALED) for seed in context.seeds]
            jacobians[name].append([jacobian for jacobian, _ in results])
            entropies[name].append([entropy for _, entropy in results])
    x = [float(width) for width in widths]

    def series(values: dict[str, list[list[float]]]) -> list[Series]:
        return [Series(name, x, numbers) for name, numbers in values.items()]

    label = "head width d_k"
    return [
        Panel(label, "norm of the softmax's Jacobian", series(jacobians), log="x"),
        Panel(label, f"entropy of the attention weights, share of log {KEYS}", series(entropies), log="x"),
    ]


def _softmax(width: int, queries: int, seed: int, *, scaled: bool) -> tuple[float, float]:
    """The mean norm of the Jacobian diag(p) - p pᵀ, and the mean entropy of p as a share of the largest possible."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(rows, width, generator=generator) for rows in (queries, KEYS))
    scores = q @ k.T / (math.sqrt(width) if scaled else 1.0)
    p = scores.softmax(-1)
    squares = (p**2).sum(-1)
    # The squared Frobenius norm: Σᵢ pᵢ² (1 - 2 pᵢ) + (Σᵢ pᵢ²)².
    jacobian = (squares - 2 * (p**3).sum(-1) + squares**2).clamp(min=0).sqrt()
    entropy = -(p * scores.log_softmax(-1)).sum(-1) / math.log(KEYS)
    return jacobian.mean().item(), entropy.mean().item()


def judge(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether without the division the weights collapse onto one key, and the gradient becomes very small."""
    jacobian, entropy = panels
    widths = entropy.series[0].x
    wide, usual = widths[-1], 64.0 if 64.0 in widths else widths[0]

    def both(panel: Panel, width: float) -> list[float]:
        return [panel.named(name).at(width) for name in (SCALED, UNSCALED)]

    (even, collapsed), (gradient, saturated) = both(entropy, wide), both(jacobian, wide)
    finding = (
        f"At d_k = {wide:.0f} the weights have {even:.0%} of the largest entropy with the division and {collapsed:.0%} "
        f"without it, and the Jacobian's norm is {gradient:.2f} and {saturated:.2f}: the softmax saturates, and "
        f"{saturated / gradient:.0%} of the gradient is left. "
        "At d_k = {:.0f} the entropy is {:.0%} and {:.0%}, but the Jacobian's norm {:.2f} and {:.2f}.".format(
            usual, *both(entropy, usual), *both(jacobian, usual)
        )
    )
    if collapsed > even / 2:
        return "does not hold here", finding
    return ("holds" if saturated < gradient / 10 else "holds in part"), finding
