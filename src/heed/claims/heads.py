"""The number of heads: whether several see more than one, and whether there can be too many (paper, table 3, A).

The width of the model is constant, so more heads are narrower heads, and the number of parameters is the same.
"""

from heed.claims.claim import Context
from heed.claims.result import Panel, Scale, Verdict, is_less
from heed.claims.translation import EXACT, LOSS, finals, train_variants

_HEADS: dict[Scale, tuple[int, ...]] = {"smallest": (1, 2), "small": (1, 2, 4, 8, 16), "full": (1, 2, 4, 8, 16)}


def measure(context: Context) -> list[Panel]:
    """Exact translations and validation loss by number of heads."""
    trained = train_variants(context, {str(heads): {"model.heads": heads} for heads in _HEADS[context.scale]})
    groups = {"Transformer": [(float(name), variant) for name, variant in trained.items()]}
    return [finals(groups, "heads", metric) for metric in (EXACT, LOSS)]


def judge(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether one head is worse than the best number of heads, and so is the largest number."""
    (series,) = panels[0].series
    best = max(series.x, key=series.at)
    described = ", ".join(f"{heads:.0f}: {series.at(heads):.0%}" for heads in series.x)
    finding = f"Exact translations by number of heads: {described}."
    one_is_worse, most_are_worse = (
        is_less(series.values_at(heads), series.values_at(best)) for heads in (series.x[0], series.x[-1])
    )
    if one_is_worse and most_are_worse:
        return "holds", finding
    return ("holds in part" if one_is_worse or most_are_worse else "does not hold here"), finding
