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
    return [finals(groups, "heads", metric, log="x") for metric in (EXACT, LOSS)]


def judge(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether the loss with one head is above that with the best number of heads, and so is that with the most."""
    ((exact,), (loss,)) = (panel.series for panel in panels)
    best = min(loss.x, key=loss.at)
    described = ", ".join(f"{heads:.0f}: {exact.at(heads):.0%} and {loss.at(heads):.3f}" for heads in exact.x)
    finding = f"Exact translations and validation loss by number of heads: {described}."
    one_is_worse, most_are_worse = (
        is_less(loss.values_at(best), loss.values_at(heads)) for heads in (loss.x[0], loss.x[-1])
    )
    if one_is_worse and most_are_worse:
        return "holds", finding
    return ("holds in part" if one_is_worse or most_are_worse else "does not hold here"), finding
