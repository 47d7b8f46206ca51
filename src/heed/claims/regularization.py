"""Dropout and label smoothing: what they do to translations, to the loss and to calibration (paper, section 5.4).

The corpus is cut to a twentieth, so that models overfit.
"""

from heed.claims.calibration import calibration_error
from heed.claims.claim import Context
from heed.claims.result import Panel, Scale, Series, Verdict, is_less
from heed.claims.translation import EXACT, LOSS, SIZES, TrainedVariant, finals, train_variants
from heed.microworld.corpus import corpus

_DROPOUTS: dict[Scale, tuple[float, ...]] = {"smallest": (0.0, 0.1), "small": (0.0, 0.1, 0.3), "full": (0.0, 0.1, 0.3)}
_SMOOTHINGS = (0.0, 0.1)
_CUT = 20
_X = "dropout"
Groups = dict[str, list[tuple[float, TrainedVariant]]]


def measure(context: Context) -> list[Panel]:
    """Exact translations, validation loss and calibration error by dropout, with and without label smoothing."""
    size, dropouts = SIZES[context.scale], _DROPOUTS[context.scale]
    variants = {
        f"{smoothing} {dropout}": {"training.label_smoothing": smoothing, "model.dropout": dropout}
        for smoothing in _SMOOTHINGS
        for dropout in dropouts
    }
    trained = train_variants(context, variants, pairs=max(10, size.pairs // _CUT))
    groups = {
        _name(smoothing): [(dropout, trained[f"{smoothing} {dropout}"]) for dropout in dropouts]
        for smoothing in _SMOOTHINGS
    }
    return [*(finals(groups, _X, metric) for metric in (EXACT, LOSS)), _calibration(groups, size.validation_pairs)]


def _name(smoothing: float) -> str:
    return f"label smoothing {smoothing:g}"


def _calibration(groups: Groups, count: int) -> Panel:
    examples, series = corpus("valid", count), []
    for name, group in groups.items():
        errors = [[calibration_error(folder, examples) for folder in variant.folders] for _, variant in group]
        series.append(Series(name, [x for x, _ in group], errors))
    return Panel(_X, "expected calibration error", series)


def judge(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether dropout gives more exact translations, and label smoothing more of them at a higher loss."""
    exact, loss, calibration = panels
    plain, smoothed = (panel.named(_name(0.0)) for panel in (exact, loss)), _name(0.1)
    (exact_plain, loss_plain) = plain
    none, some = exact_plain.x[0], exact_plain.x[1]
    described = ", ".join(
        f"{series.name} and dropout {x:g} {series.at(x):.0%}" for series in exact.series for x in series.x
    )
    errors = [panel.at(some) for panel in calibration.series]
    finding = (
        f"Exact translations: {described}. With dropout {some:g}, label smoothing changes the validation loss from "
        f"{loss_plain.at(some):.3f} to {loss.named(smoothed).at(some):.3f} and the calibration error from "
        f"{errors[0]:.1%} to {errors[1]:.1%}."
    )
    parts = (
        is_less(exact_plain.values_at(none), exact_plain.values_at(some)),
        is_less(exact_plain.values_at(some), exact.named(smoothed).values_at(some)),
        is_less(loss_plain.values_at(some), loss.named(smoothed).values_at(some)),
    )
    return ("holds" if all(parts) else "holds in part" if any(parts) else "does not hold here"), finding
