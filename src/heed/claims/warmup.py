"""Warm-up of the learning rate: whether post-norm needs it, and pre-norm does not (Xiong et al. 2020).

Each order of norm and residual connection, with and without warm-up, has the learning rate that suits it best.
"""

from heed.claims.claim import Context
from heed.claims.depth import layers_of
from heed.claims.result import Panel, Verdict, is_less
from heed.claims.translation import LOSS, curves, train_variants, with_best_rates

NORMS = ("post", "pre", "sandwich")
_LAYERS = 4


def measure(context: Context) -> list[Panel]:
    """The learning curves of each order of norm and residual connection, with and without warm-up."""
    variants = {
        f"{norm}-norm, {words}": {**layers_of(_LAYERS), "model.norm": norm, **settings}
        for norm in NORMS
        for words, settings in (("warm-up", {}), ("no warm-up", {"training.warmup_steps": 1}))
    }
    return [curves(train_variants(context, with_best_rates(context, variants)), LOSS)]


def judge(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether without warm-up the loss is higher with post-norm, and not with pre-norm."""
    (panel,) = panels
    end = panel.series[0].x[-1]
    losses = {series.name: series.values_at(end) for series in panel.series}
    described = ", ".join(f"{series.name} {series.at(end):.2f}" for series in panel.series)
    finding = f"Validation loss of models of {_LAYERS} layers after {end:,.0f} steps: {described}."
    post, pre = (is_less(losses[f"{norm}-norm, warm-up"], losses[f"{norm}-norm, no warm-up"]) for norm in NORMS[:2])
    if post and not pre:
        return "holds", finding
    return ("holds in part" if post else "does not hold here"), finding
