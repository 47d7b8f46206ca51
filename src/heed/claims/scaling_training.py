"""The division by √d_k in training: whether models without it learn worse, and the more so the wider their heads."""

from heed.claims.claim import Context
from heed.claims.result import Panel, Scale, Verdict, is_less
from heed.claims.scaling import SCALED, UNSCALED
from heed.claims.translation import EXACT, LOSS, SIZES, finals, train_variants

_HEADS: dict[Scale, tuple[int, ...]] = {"smallest": (4, 1), "small": (16, 4, 1), "full": (16, 4, 1)}


def measure(context: Context) -> list[Panel]:
    """Exact translations and validation loss by head width, with and without the division."""
    heads, width = _HEADS[context.scale], SIZES[context.scale].width
    variants = {
        f"{name} {number}": {"model.heads": number, "model.without": without}
        for name, without in ((SCALED, None), (UNSCALED, "scaling"))
        for number in heads
    }
    trained = train_variants(context, variants)
    groups = {
        name: [(float(width // number), trained[f"{name} {number}"]) for number in heads] for name in (SCALED, UNSCALED)
    }
    return [finals(groups, "head width d_k", metric, log="x") for metric in (EXACT, LOSS)]


def judge(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether the loss without the division is higher at the largest head width, and more so than at the smallest."""
    exact, loss = panels
    described = ", ".join(
        f"d_k = {x:.0f} {exact.named(SCALED).at(x):.0%} and {exact.named(UNSCALED).at(x):.0%}"
        for x in exact.series[0].x
    )
    finding = f"Exact translations with and without the division: {described}."
    scaled, unscaled = loss.named(SCALED), loss.named(UNSCALED)
    narrow, wide = scaled.x[0], scaled.x[-1]
    worse = is_less(scaled.values_at(wide), unscaled.values_at(wide))
    grows = unscaled.at(wide) - scaled.at(wide) > unscaled.at(narrow) - scaled.at(narrow)
    return ("holds" if worse and grows else "holds in part" if worse else "does not hold here"), finding
