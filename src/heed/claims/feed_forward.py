"""The feed-forward network: what is lost without it, without its activation, and with a narrow one (paper, 3.3)."""

from heed.claims.claim import Context
from heed.claims.result import Panel, Verdict, is_less
from heed.claims.translation import EXACT, LOSS, SIZES, Variant, curves, train_variants

REMOVED, LINEAR, NARROW, USUAL = "removed", "×4, linear", "×1, ReLU", "×4, ReLU"


def measure(context: Context) -> list[Panel]:
    """The learning curves with each feed-forward network."""
    variants: dict[str, Variant] = {
        REMOVED: {"model.without": "feed-forward"},
        LINEAR: {"model.without": "activation"},
        NARROW: {"model.d_ff": SIZES[context.scale].width},
        USUAL: {},
    }
    trained = train_variants(context, variants)
    return [curves(trained, metric) for metric in (EXACT, LOSS)]


def judge(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether the loss is higher without the network, and with a linear one."""
    exact, loss = panels
    end = loss.series[0].x[-1]
    described = ", ".join(f"{series.name} {series.at(end):.0%}" for series in exact.series)
    finding = f"Exact translations after {end:,.0f} steps by feed-forward network: {described}."
    usual = loss.named(USUAL).values_at(end)
    worse = [is_less(usual, loss.named(name).values_at(end)) for name in (REMOVED, LINEAR)]
    return ("holds" if all(worse) else "holds in part" if any(worse) else "does not hold here"), finding
